"""Blocks that the kernels compute, against transformers' layers with the same weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from flowedge.models.attention.kv_store import new_store
from flowedge.models.kernels import block as kernel_block
from flowedge.models.kernels.block import KernelBlock
from flowedge.models.kernels.layer import NoKernelError
from flowedge.models.kernels.row_paths import RowPaths, row_paths
from flowedge.models.kernels.run import KernelRows
from flowedge.models.recurrent.updated_states import UpdatedStates
from flowedge.models.rotary import Rotary
from tests.models.conftest import threads_of_torch
from tests.models.layer_pairs import CONTEXT, CPU, DEPTHS, PARENTS, TAIL, LayerPair, layer_pair
from tests.models.tiny_families import TINY
from tests.support.breadth import dealt
from tests.support.kernels import RUNNING, kernels_of

ROWS = 128
# What a kernel does beside a plain layer: windows, soft caps, norms of heads, no angles, experts, states.
DISTINCT = (
    "llama",
    "gemma2",
    "gemma3",
    "smollm3",
    "mixtral",
    "qwen3_5",
    "lfm2",
    "lfm2_moe",
    "gpt_oss",
    "granitehybrid-experts",
    "nemotron_h",
    "glm4_moe_lite",
    # Keys that serve as values; rows that layers are given, and keys that they share; experts beside an MLP.
    "gemma4",
    "gemma4-small",
    "gemma4-moe",
)


def families(tested: Collection[str]) -> Any:
    """All families with the build that this machine uses, one family with the others."""
    cases = [
        (build.name, name) for build in RUNNING for name in TINY if build is RUNNING[0] or name == "llama"
    ]
    return pytest.mark.parametrize(
        ("build", "name"), dealt(cases, lambda case: case[1] in tested), indirect=["build"]
    )


@pytest.fixture
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The build with the name that the parameter has is used."""
    (used,) = (each for each in RUNNING if each.name == request.param)
    with kernels_of(used, monkeypatch):
        yield


class Computed:
    """The layers of a pair as the kernels compute them, with a cache."""

    def __init__(self, pair: LayerPair, first: int = 0, stop: int | None = None) -> None:
        stop = len(pair.ours) if stop is None else stop
        windows = pair.architecture.windows[first:stop]
        partial = pair.architecture.partial_rotary
        rotary = Rotary(pair.config, range(first, stop), CPU, partial_rotary=partial)
        self.block = KernelBlock(pair.ours[first:stop], windows, rotary, pair.dtype, None)
        self.store = new_store(pair.architecture.cached_heads(first, stop), ROWS, pair.dtype, CPU, "native")
        given = pair.given()
        self.given = None if given is None else given[:, first:stop].flatten(1).contiguous()
        self.states = pair.states(slice(first, stop))

    def cached(self, paths: RowPaths, slot: int = 0, updated: UpdatedStates | None = None) -> KernelRows:
        return self.block.cached_rows(paths, slot, self.store, updated)

    def compute(
        self,
        hidden: torch.Tensor,
        slot: int,
        context: int,
        parents: object,
        positions: object,
        first: int | None = None,
    ) -> torch.Tensor:
        """first: the first of these rows among those of the pair; `slot` if None."""
        above = np.asarray(parents)
        paths = row_paths(context, above, np.asarray(positions))
        updated = None if self.states is None else UpdatedStates(self.states, slot, context, above)
        first = slot if first is None else first
        given = None if self.given is None else self.given[first : first + len(hidden)]
        rows = [self.cached(paths, slot, updated)]
        found = self.block.forward(hidden.clone(), rows, lambda: False, given=given)
        assert found is not None
        return found


def outputs(pair: LayerPair) -> torch.Tensor:
    """The rows of a context and of a tree after it, as LayerPair.outputs computes them."""
    native, rows = Computed(pair), pair.rows()
    parts = [
        native.compute(rows[:CONTEXT], 0, 0, np.arange(CONTEXT) - 1, np.arange(CONTEXT)),
        native.compute(rows[CONTEXT:], CONTEXT, CONTEXT, PARENTS, CONTEXT + DEPTHS),
    ]
    return torch.cat(parts).float()


@pytest.mark.one_in(3)
@families(tested=TINY)
@torch.inference_mode()
def test_a_family_has_the_rows_of_transformers(build: None, name: str) -> None:
    pair = layer_pair(name)
    theirs, _ = pair.outputs()
    assert torch.allclose(outputs(pair), theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


@families(tested=("llama", "gemma3"))
@torch.inference_mode()
def test_a_family_in_bfloat16_is_as_near_as_rounding_allows(build: None, name: str) -> None:
    pair, exact = layer_pair(name, torch.bfloat16), layer_pair(name)
    for own, other in zip(exact.theirs, pair.theirs, strict=True):
        own.load_state_dict(other.float().state_dict())
    right, _ = exact.outputs()
    theirs, _ = layer_pair(name, torch.bfloat16).outputs()
    ours = outputs(layer_pair(name, torch.bfloat16))
    assert float((ours - right).norm()) <= 2.5 * float((theirs - right).norm())


@pytest.mark.parametrize("quant", ["int8", "int4"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
@torch.inference_mode()
def test_quantised_layers_have_the_rows_of_their_products(family: str, quant: str) -> None:
    pair = layer_pair(family, quant=quant, intermediate_size=64, moe_intermediate_size=64)
    theirs, _ = pair.outputs()
    # A number that is rounded to 8 bits may be rounded the other way.
    assert float((outputs(pair) - theirs).norm() / theirs.norm()) < 1e-2


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@torch.inference_mode()
def test_linear_layers_that_read_the_same_rows_may_have_different_formats(family: str) -> None:
    """GGUF files store queries, keys and values in different types, and gates too."""
    formats = {"q_proj": "int8", "v_proj": "int4", "up_proj": "int4"}  # others stay floats
    pair = layer_pair(family, formats=formats, intermediate_size=64)
    theirs, _ = pair.outputs()
    assert float((outputs(pair) - theirs).norm() / theirs.norm()) < 1e-2


@torch.inference_mode()
def test_a_shared_expert_may_round_rows_in_other_groups_and_be_wider_than_others() -> None:
    formats = {"experts.": "int4", "shared_": "int8"}
    sizes = {"intermediate_size": 64, "shared_intermediate_size": 128}
    pair = layer_pair("granitehybrid-experts", formats=formats, **sizes)
    theirs, _ = pair.outputs()
    assert float((outputs(pair) - theirs).norm() / theirs.norm()) < 1e-2


@families(tested=DISTINCT)
@torch.inference_mode()
def test_rows_have_the_bits_of_their_paths_alone(build: None, name: str) -> None:
    pair = layer_pair(name, torch.bfloat16)
    together, rows = outputs(pair), pair.rows()
    for leaf, path in ((4, [0, 1, 4]), (2, [0, 2]), (3, [3])):
        alone = Computed(pair)  # anew, since a state cannot be taken back
        for row in range(CONTEXT):
            found = alone.compute(rows[row : row + 1], row, row, [-1], [row])
            assert torch.equal(found[0].float(), together[row]), row
        for place, row in enumerate(path, start=CONTEXT):
            found = alone.compute(rows[CONTEXT + row][None], place, place, [-1], [place], CONTEXT + row)
        assert torch.equal(found[0].float(), together[CONTEXT + leaf]), leaf


@pytest.mark.parametrize(
    "family",
    ["llama", "gemma2", "mixtral", "qwen3_5", "lfm2", "granitehybrid-experts", "nemotron_h", "glm4_moe_lite"],
)
@torch.inference_mode()
def test_the_bits_depend_neither_on_the_division_of_the_model_nor_on_threads(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = layer_pair(family, torch.bfloat16)
    rows, chain = pair.rows(), (0, 0, np.arange(CONTEXT + TAIL) - 1, np.arange(CONTEXT + TAIL))
    whole = Computed(pair).compute(rows, *chain)
    hidden = rows
    for first in range(len(pair.ours)):
        hidden = Computed(pair, first, first + 1).compute(hidden, *chain)
    assert torch.equal(hidden, whole)
    monkeypatch.setattr(kernel_block, "_CALL_BYTES", 0)  # a call for each layer
    for other in (2, 3):
        with threads_of_torch(other):
            assert torch.equal(Computed(pair).compute(rows, *chain), whole)


@torch.inference_mode()
def test_a_forward_is_aborted_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_block, "_CALL_BYTES", 0)
    native = Computed(pair := layer_pair("llama"))
    asked = iter([False, True])
    paths = row_paths(0, np.array([-1]), np.array([0]))
    assert native.block.forward(pair.rows()[:1], [native.cached(paths)], lambda: next(asked)) is None


@torch.inference_mode()
def test_the_inputs_of_tapped_layers_follow_the_rows() -> None:
    pair = layer_pair("llama")
    rows, chain = pair.rows(), (0, 0, np.arange(CONTEXT + TAIL) - 1, np.arange(CONTEXT + TAIL))
    plain, first = Computed(pair).compute(rows, *chain), Computed(pair, 0, 1).compute(rows, *chain)
    native = Computed(pair)
    paths = row_paths(0, np.arange(CONTEXT + TAIL) - 1, np.arange(CONTEXT + TAIL))
    found = native.block.forward(rows.clone(), [native.cached(paths)], lambda: False, taps=(0, 1))
    assert found is not None
    assert torch.equal(found, torch.cat((plain, rows, first), 1))


@torch.inference_mode()
def test_a_row_that_is_not_finite_stays_so() -> None:
    pair = layer_pair("llama")
    rows = pair.rows()
    rows[3, 5] = float("nan")
    found = Computed(pair).compute(rows, 0, 0, np.arange(CONTEXT + TAIL) - 1, np.arange(CONTEXT + TAIL))
    assert found[:3].isfinite().all()
    assert not found[3].isfinite().any()


def test_layers_without_kernels_say_why() -> None:
    pair = layer_pair("llama", quant="w8a16")
    with pytest.raises(NoKernelError, match="W8A16Linear"):
        Computed(pair)
