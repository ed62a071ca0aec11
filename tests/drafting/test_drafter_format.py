"""The form of drafters that are models: how it is chosen, and what a draft node holds in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from flowedge.core.pipeline_config import DraftQuant, VocabularySize
from flowedge.device.kernel_library import missing_reason
from flowedge.drafting import draft_quant
from flowedge.drafting.draft_quant import layer_quant
from flowedge.drafting.draft_vocabulary import ENOUGH_TOKENS
from flowedge.drafting.drafter_format import DrafterFormat
from flowedge.drafting.drafter_memory import drafter_memory
from flowedge.drafting.token_counts import CountsFile, TokenCounts
from flowedge.engine.executors.draft_models import DraftModels, required_memory
from flowedge.models.checkpoint.checkpoint import Checkpoint
from tests.support.breadth import dealt_diagonally

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
VOCAB = 4096


@pytest.mark.parametrize(
    ("vocabulary", "vocab_size", "tokens"),
    [
        ("auto", 32_000, 32_000),
        ("auto", 128_256, 32_768),
        ("all", 128_256, 128_256),
        (5000, 128_256, 5000),
        (5000, 4096, 4096),
    ],
)
def test_auto_takes_a_part_of_large_vocabularies(
    vocabulary: VocabularySize, vocab_size: int, tokens: int
) -> None:
    assert DrafterFormat("auto", vocabulary).tokens(vocab_size) == tokens


def test_a_gpu_proposes_all_tokens_unless_a_number_is_asked_for() -> None:
    assert DrafterFormat().tokens(128_256, "cuda") == 128_256
    assert DrafterFormat("auto", 5000).tokens(128_256, "cuda") == 5000


def test_auto_takes_8_bits_where_kernels_make_them_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_quant, "missing_reason", lambda: "")
    assert layer_quant(DrafterFormat("auto"), torch.bfloat16, CPU) == "int8"
    assert layer_quant(DrafterFormat("auto"), torch.float32, CPU) == "none"
    assert layer_quant(DrafterFormat("auto"), torch.float16, CUDA) == "none"
    assert layer_quant(DrafterFormat("int4"), torch.float32, CUDA) == "int4"
    monkeypatch.setattr(draft_quant, "missing_reason", lambda: "no kernels")
    assert layer_quant(DrafterFormat("auto"), torch.bfloat16, CPU) == "none"


def test_short_of_memory_an_automatic_format_has_fewer_bits() -> None:
    plain = DrafterFormat("auto", 1000)
    smaller = plain.in_less_memory()
    assert [form.quant for form in smaller] == ["int8", "int4"]
    assert all(form.limits_copy and form.vocabulary == 1000 for form in smaller)
    assert DrafterFormat("int8").in_less_memory() == () and not DrafterFormat("int8").limits_copy
    checkpoint = Checkpoint.open("bundled")
    sizes = [
        drafter_memory(("bundled",), checkpoint, torch.float32, form).weights for form in (plain, *smaller)
    ]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("name", "quant", "tokens", "dtype"),
    dealt_diagonally(
        ("bundled", "bundled-small", "bundled-eagle3"),
        ("none", "int8", "int4"),
        ("all", 1000),
        ("float32", "bfloat16"),
        one_in=4,
    ),
)
def test_memory_that_is_asked_for_is_what_is_held(
    name: str, quant: DraftQuant, tokens: VocabularySize, dtype: str, tmp_path: Path
) -> None:
    checkpoint = Checkpoint.open("bundled")
    counts = TokenCounts(VOCAB)
    counts.add(np.arange(ENOUGH_TOKENS) % VOCAB)
    CountsFile(tmp_path, checkpoint.fingerprint, VOCAB).write(counts)
    drafter, form = (name,), DrafterFormat(quant, tokens)
    models = DraftModels.load(checkpoint, drafter, dtype, form=form, state=tmp_path)
    asked, _ = required_memory(checkpoint, drafter, dtype, form=form)
    own = name == "bundled-eagle3"
    assert models.draft_quant == quant
    assert models.draft_tokens == (3072 if own else 1000 if tokens == 1000 else VOCAB)
    if tokens == "all" or own or quant == "none":
        assert asked == pytest.approx(models.weight_bytes, rel=0.02)
    else:  # until enough is counted, the whole head is copied
        whole = DraftModels.load(checkpoint, drafter, dtype, form=form)
        assert asked == pytest.approx(whole.weight_bytes, rel=0.02)
        assert models.weight_bytes < whole.weight_bytes


def test_auto_asks_for_no_copy_that_takes_more_than_8_bits_save() -> None:
    if missing_reason():
        pytest.skip(missing_reason())
    checkpoint = Checkpoint.open("bundled")
    plain = drafter_memory(("bundled",), checkpoint, torch.bfloat16, DrafterFormat("none", "all"))
    auto = drafter_memory(("bundled",), checkpoint, torch.bfloat16, DrafterFormat("auto", "all"))
    forced = drafter_memory(("bundled",), checkpoint, torch.bfloat16, DrafterFormat("int8", "all"))
    assert auto.weights <= plain.weights
    assert forced.weights >= auto.weights


def test_a_part_needs_counts_of_the_model(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open("bundled")
    CountsFile(tmp_path, "another model", VOCAB).write(TokenCounts(VOCAB, np.full(VOCAB, 100)))
    form = DrafterFormat("none", 1000)
    models = DraftModels.load(checkpoint, ("bundled",), "float32", form=form, state=tmp_path)
    assert models.draft_tokens == VOCAB
