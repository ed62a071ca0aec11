"""The kernels propose what torch proposes, and a row's bits do not depend on the rows beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from flowedge.drafting.heads import head_drafter
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.heads.head_rows import GrownRows, TrueRows
from flowedge.drafting.heads.head_store import HeadSizes, HeadStore
from flowedge.drafting.heads.native_eagle import NativeEagle, not_native_reason
from flowedge.models.layers.head import LMHead
from flowedge.native.library import missing_reason
from tests.drafting.trees import grow_and_check

HIDDEN, VOCAB, TRUE_ROWS = 64, 50, 300
pytestmark = pytest.mark.skipif(bool(missing_reason()), reason=missing_reason() or "there are kernels")


def head(dtype: torch.dtype = torch.float32, **changes: object) -> EagleHead:
    torch.manual_seed(0)
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 96, "vocab_size": VOCAB, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**(sizes | heads | changes))  # type: ignore[arg-type]
    return EagleHead(config, fc_bias=True).to(dtype).eval().requires_grad_(False)


def drafter(of: EagleHead) -> HeadDrafter:
    torch.manual_seed(1)
    weight = nn.Parameter(torch.randn(VOCAB, HIDDEN).to(of.fc.weight.dtype), requires_grad=False)
    embedding = nn.Embedding(VOCAB, HIDDEN).to(of.fc.weight.dtype).requires_grad_(False)
    return HeadDrafter(of, LMHead(weight, "lm_head.weight"), embedding)


def proposals(of: HeadDrafter) -> dict[tuple[int, ...], tuple[list[int], np.ndarray]]:
    """What is proposed after each path of two growths, after a long prompt and after three more rows."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((TRUE_ROWS + 3, HIDDEN)).astype(np.float32)
    tokens = rng.integers(0, VOCAB, TRUE_ROWS + 3)
    of.open("s", 512, 1)
    found: dict[tuple[int, ...], tuple[list[int], np.ndarray]] = {}
    for growth, rows in enumerate((slice(0, TRUE_ROWS), slice(TRUE_ROWS, TRUE_ROWS + 3))):
        of.extend("s", features[rows], tokens[rows])

        def note(path: list[int], own: np.ndarray, scores: np.ndarray, growth: int = growth) -> None:
            found[(growth, *path)] = (own.tolist(), scores)

        grow_and_check(of, growth, 5, note, vocab=VOCAB)
    return found


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True}, {"num_key_value_heads": 4}])
def test_the_kernels_propose_what_torch_proposes(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    own = proposals(drafter(head(**changes)))
    monkeypatch.setattr(head_drafter, "not_native_reason", lambda _: "for comparison")
    plain = proposals(drafter(head(**changes)))
    assert own.keys() == plain.keys()
    for path, (tokens, scores) in plain.items():
        assert own[path][0] == tokens, path
        assert own[path][1] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_and_among_others(dtype: torch.dtype) -> None:
    of = head(dtype)
    native, sizes = NativeEagle(of), HeadSizes.of(of.config, dtype, torch.device("cpu"), recalls=False)
    generator = torch.Generator().manual_seed(2)
    embedded, states = torch.randn(2, 40, HIDDEN, generator=generator).to(dtype)
    ancestors: list[tuple[int, ...]] = []
    for row in range(20, 40):  # of a tree below 20 true rows
        parent = (row * 7) % (row - 19) + 19
        ancestors.append(() if parent == 19 else (*ancestors[parent - 20], parent))
    together, alone = HeadStore(sizes, 64), HeadStore(sizes, 64)
    true = TrueRows.at(0, np.zeros((20, HIDDEN), np.float32), np.zeros(20, np.int64))
    tree = GrownRows.below(20, 20, ancestors, [0] * 20)
    found = [
        native.predict(embedded[part], states[part], rows, together)
        for part, rows in ((slice(0, 20), true), (slice(20, 40), tree))
    ]
    for row in range(40):
        part = slice(row, row + 1)
        rows = (
            dataclasses.replace(true, first=row, tokens=true.tokens[:1], positions=true.positions[part])
            if row < 20
            else GrownRows.below(row, 20, ancestors[row - 20 : row - 19], [0])
        )
        single = native.predict(embedded[part], states[part], rows, alone)
        assert torch.equal(single[0], found[row // 20][row % 20]), row
    assert torch.equal(together.kv, alone.kv)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: head(torch.float16), "no kernels for weights of torch.float16"),
        (lambda: head(hidden_act="gelu"), "no kernel for its activation gelu"),
        (lambda: head().to("meta"), "not in the host's memory"),
    ],
)
def test_other_heads_are_computed_by_torch(made: Callable[[], EagleHead], reason: str) -> None:
    assert reason in not_native_reason(made())
