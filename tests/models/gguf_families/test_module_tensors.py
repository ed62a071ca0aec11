"""Architectures and tensors that FlowEdge does not know are refused by name."""

from __future__ import annotations

import pytest

from flowedge.core.errors import CheckpointError
from flowedge.models.gguf_families.architectures import ARCHITECTURES, architecture_of
from flowedge.models.gguf_families.module_tensors import module_tensors


def test_other_architectures_are_refused_by_name() -> None:
    for name in ("falcon", "deepseek", 3, None):
        with pytest.raises(
            CheckpointError, match=f"architecture {name!r} is not supported; supported .*llama"
        ):
            architecture_of(name)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("blk.0.attn_sinks.weight", (4,), "attn_sinks.weight is no part of the architecture llama"),
        ("blk.0.attn_q_norm.weight", (8,), "is no part of the architecture"),
        ("v.patch_embd.weight", (8, 8), "is no part of the architecture"),
        ("blk.0.attn_q.weight", (30, 32), "30 rows of tensor .* not pairs in 4 heads"),
        ("blk.0.ffn_gate_exps.weight", (30, 32), "is not a stack"),
    ],
)
def test_tensors_that_do_not_belong(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        module_tensors(ARCHITECTURES["llama"], {name: shape}, 4, 2)


def test_experts_one_by_one_and_stacked_are_not_both_there() -> None:
    shapes = {"blk.0.ffn_up_exps.weight": (2, 8, 4), "blk.0.ffn_up.1.weight": (8, 4)}
    with pytest.raises(CheckpointError, match=r"are both model\.layers\.0\.mlp\.experts\.1\.up_proj\.weight"):
        module_tensors(ARCHITECTURES["llama"], shapes, 4, 2)
