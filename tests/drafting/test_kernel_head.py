"""The kernels propose what torch proposes, and a row's bits do not depend on the rows beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from flowedge.device.kernel_library import missing_reason
from flowedge.drafting.heads import head_forward
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.heads.head_rows import GrownRows, TrueRows
from flowedge.drafting.heads.head_store import HeadSizes, HeadStore
from flowedge.drafting.heads.kernel_head import KernelHead
from flowedge.models.kernels.layer import NoKernelError
from flowedge.models.lm_head import LMHead
from flowedge.models.quant.quantize import quantize_block
from tests.drafting.made_drafters import VOCAB, small_config
from tests.drafting.trees import extend, grow_and_check

HIDDEN, TRUE_ROWS = 64, 300
pytestmark = pytest.mark.skipif(bool(missing_reason()), reason=missing_reason() or "there are kernels")


def head(dtype: torch.dtype = torch.float32, **changes: object) -> EagleHead:
    torch.manual_seed(0)
    config = small_config(**({"hidden_size": HIDDEN, "intermediate_size": 96} | changes))
    return EagleHead(config, fc_bias=True).to(dtype).eval().requires_grad_(False)


def lm_head(dtype: torch.dtype) -> LMHead:
    torch.manual_seed(1)
    return LMHead(nn.Parameter(torch.randn(VOCAB, HIDDEN).to(dtype), requires_grad=False), "lm_head.weight")


def drafter(of: EagleHead, dtype: torch.dtype = torch.float32) -> HeadDrafter:
    own = lm_head(dtype)
    return HeadDrafter(of, own, nn.Embedding(VOCAB, HIDDEN).to(dtype).requires_grad_(False))


def proposals(of: HeadDrafter) -> dict[tuple[int, ...], tuple[list[int], np.ndarray]]:
    """What is proposed after each path of two growths, after a long prompt and after three more rows."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((TRUE_ROWS + 3, HIDDEN)).astype(np.float32)
    tokens = rng.integers(0, VOCAB, TRUE_ROWS + 3)
    of.open("s", 512, 1)
    found: dict[tuple[int, ...], tuple[list[int], np.ndarray]] = {}
    for growth, rows in enumerate((slice(0, TRUE_ROWS), slice(TRUE_ROWS, TRUE_ROWS + 3))):
        extend(of, "s", features[rows], tokens[rows])

        def note(path: list[int], own: np.ndarray, scores: np.ndarray, growth: int = growth) -> None:
            found[(growth, *path)] = (own.tolist(), scores)

        grow_and_check(of, growth, 5, note, vocab=VOCAB)
    return found


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True}, {"num_key_value_heads": 4}])
def test_the_kernels_propose_what_torch_proposes(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    own = proposals(drafter(head(**changes)))

    def refuse(_: EagleHead) -> KernelHead:
        raise NoKernelError("for comparison")

    monkeypatch.setattr(head_forward, "KernelHead", refuse)
    plain = proposals(drafter(head(**changes)))
    assert own.keys() == plain.keys()
    for path, (tokens, scores) in plain.items():
        assert own[path][0] == tokens, path
        assert own[path][1] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(
    ("dtype", "quant"),
    [
        (torch.float32, "none"),
        (torch.bfloat16, "none"),
        (torch.bfloat16, "int8"),
        (torch.float32, "int8"),
        (torch.bfloat16, "int4"),
    ],
)
def test_a_row_has_the_same_bits_alone_and_among_others(dtype: torch.dtype, quant: str) -> None:
    of = head(dtype)
    quantize_block(of, quant)
    native = KernelHead(of)
    sizes = HeadSizes.of(of.config, dtype, torch.device("cpu"), recalls=False)
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
        native.predict(embedded[part], states[part], [(rows, together)])
        for part, rows in ((slice(0, 20), true), (slice(20, 40), tree))
    ]
    for row in range(40):
        part = slice(row, row + 1)
        rows = (
            dataclasses.replace(true, first=row, tokens=true.tokens[:1], positions=true.positions[part])
            if row < 20
            else GrownRows.below(row, 20, ancestors[row - 20 : row - 19], [0])
        )
        single = native.predict(embedded[part], states[part], [(rows, alone)])
        assert torch.equal(single[0], found[row // 20][row % 20]), row
    assert torch.equal(together.kv, alone.kv)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: head(torch.float16), "no kernels for weights of torch.float16"),
        (lambda: head(hidden_act="gelu"), "no kernel for its activation gelu"),
        (lambda: head().to("meta"), "not in the host's memory"),
        (lambda: quantize_block(head(intermediate_size=40), "int8"), "quantised weights are padded"),
    ],
)
def test_other_heads_are_computed_by_torch(made: Callable[[], EagleHead], reason: str) -> None:
    with pytest.raises(NoKernelError, match=reason):
        KernelHead(made())


@pytest.mark.parametrize(("quant", "kept"), [("int8", 0.8), ("int4", 0.4)])
def test_a_quantised_head_proposes_about_what_it_proposed(quant: str, kept: float) -> None:
    plain = proposals(drafter(head(torch.bfloat16), torch.bfloat16))
    of = head(torch.bfloat16)
    quantize_block(of, quant)
    own = proposals(drafter(of, torch.bfloat16))
    first = [(tokens[0], own[path][0][0]) for path, (tokens, _) in plain.items() if path in own]
    assert sum(one == other for one, other in first) > kept * len(first) > 0
