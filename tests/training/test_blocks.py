"""The blocks that a block head is trained on, against those that it drafts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from flowedge.core.errors import BadRequestError
from flowedge.drafting.block.block_pass import add_text, predict_blocks
from flowedge.drafting.block.kernel_blocks import BlockStart
from flowedge.drafting.heads.head_rows import TrueRows
from flowedge.drafting.heads.head_store import HeadSizes, HeadStore
from flowedge.training.documents import Batch, TrainingText
from flowedge.training.heads.block_training import BlockTraining
from flowedge.training.heads.head_kinds import head_taps, head_training, mask_token
from flowedge.training.local_target import LocalTarget
from flowedge.training.settings import HeadKind, TrainingSettings
from tests.drafting.block_files import save_block_head
from tests.drafting.conftest import save_small_lm
from tests.drafting.parallel_files import save_parallel_head


@pytest.mark.parametrize("kind", ["dflash", "jetspec", "dspark"])
def test_a_block_is_trained_on_what_it_is_drafted_from(tmp_path: Path, kind: HeadKind) -> None:
    directory = save_small_lm(tmp_path, seed=2, num_hidden_layers=7, initializer_range=0.2)
    settings = TrainingSettings(kind=kind, steps=1, block_size=4, head_layers=2)
    target = LocalTarget(str(directory), "none", torch.float32)
    target.taps = head_taps(kind, target.checkpoint.config)
    training = head_training(target, [], settings)
    assert isinstance(training, BlockTraining)
    rng = np.random.default_rng(0)
    texts = [TrainingText(rng.integers(5, 900, n).astype(np.int32), np.arange(n) >= 4) for n in (40, 36)]
    rows = list(target.features([text.tokens for text in texts]))
    batch = Batch.of(texts, rows, target.lm_head.hidden_size)
    starts = torch.tensor([[5, 20, 39], [3, 10, 30]])
    with torch.no_grad():
        given = torch.tensor([[0, 2, 0], [1, 0, 2]]) * (kind == "jetspec")
        states = training.predict(batch, starts, given)
        sizes = HeadSizes.of(training.head.config, torch.float32, torch.device("cpu"), False, 2)
        for text, own in enumerate(texts):
            for block, start in enumerate(starts[text].tolist()):
                store = HeadStore(sizes, 64)
                known = TrueRows.at(0, rows[text][:start].numpy(), own.tokens[1 : start + 1].astype(np.int64))
                add_text(training.head, target.embedding, [(store, known)])
                path = own.tokens[start + 1 : start + 1 + int(given[text, block])].tolist()
                begin = BlockStart(store, int(own.tokens[start]), start, tuple(path), len(path))
                (drafted,) = predict_blocks(training.head, target.embedding, [begin])
                assert len(drafted) == training.head.blocks.depths - len(path)
                torch.testing.assert_close(states[text, block, len(path) :], drafted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["dflash2", "peagle"])
def test_heads_that_are_not_trained(tmp_path: Path, name: str) -> None:
    directory = save_small_lm(tmp_path / "model", seed=2, num_hidden_layers=7)
    target = LocalTarget(str(directory), "none", torch.float32)
    config = target.checkpoint.config
    sizes = {"hidden": config.hidden_size, "vocab": config.vocab_size}
    if name == "peagle":
        save_parallel_head(tmp_path / "head", **sizes)
    else:
        save_block_head(tmp_path / "head", name, **sizes)
    settings = TrainingSettings(kind="dflash", steps=1, init=str(tmp_path / "head"))
    with pytest.raises(BadRequestError, match="can draft but not be trained"):
        head_training(target, [], settings)


class _Tokenizer:
    eos_token_id = 2

    def __init__(self, **ids: int) -> None:
        self.pad_token_id: int | None = ids.get("pad")
        self.bos_token_id: int | None = ids.get("bos")


def test_the_mask_is_a_token_that_no_answer_has() -> None:
    assert mask_token(_Tokenizer(pad=4, bos=1)) == 4
    assert mask_token(_Tokenizer(pad=2, bos=1)) == 1  # padding that is the end of an answer
    with pytest.raises(BadRequestError, match="train an EAGLE head"):
        mask_token(_Tokenizer(pad=2))
