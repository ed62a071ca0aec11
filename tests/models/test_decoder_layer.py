"""Our decoder layer against transformers' layers with the same weights, in every family."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn

from flowedge.models.architecture import Architecture
from flowedge.models.decoder_layer import DecoderLayer, GatedMlp
from flowedge.models.families.table import FAMILIES
from flowedge.models.quant.quantize import module_bytes
from tests.models.layer_pairs import LayerPair, layer_pair, tiny_config
from tests.models.tiny_families import LAYERS, TINY
from tests.support.breadth import dealt, dealt_diagonally
from tests.support.kernels import without_kernels

ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 0.03, torch.float16: 0.004}  # relative to the largest
LATENT = ("glm4_moe_lite", "glm4_moe_lite-yarn")
EVERY_SIZE_A_UNIT = {"hidden_size": 128, "intermediate_size": 192, "num_key_value_heads": 2, "head_dim": 32}


def assert_equal(pair: LayerPair, *, ordered: bool = False, tolerance: float | None = None) -> None:
    theirs, ours = pair.outputs(ordered=ordered)
    largest = theirs.abs().max().item()
    assert largest > 0.1
    allowed = ROUNDING[pair.dtype] if tolerance is None else tolerance
    if pair.architecture.recurrence is not None and pair.dtype != torch.float32:
        allowed *= 4  # theirs rounds what updates a state, over and over
    if pair.family.key_layers is not None:
        allowed *= 8  # scores are not scaled, so that their rounding weighs more
    assert (theirs - ours).abs().max().item() <= allowed * largest


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "dtype"),
    dealt(
        # In half precision a row near a tie of two experts may go the other way, as others then remember.
        [
            case
            for case in itertools.product(TINY, ROUNDING)
            if case[1] is torch.float32
            or case[0] not in ("qwen3_5_moe", "qwen3_next", "granitehybrid-experts", "gemma4-moe", *LATENT)
        ],
        lambda case: case[1] is torch.float32 or case[0] in ("gemma3", "mixtral"),
    ),
)
def test_every_family_with_a_mask(name: str, dtype: torch.dtype) -> None:
    assert_equal(layer_pair(name, dtype))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TINY)
def test_every_family_in_the_order_of_positions(name: str) -> None:
    assert_equal(layer_pair(name), ordered=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LATENT)
def test_latent_attention_beside_mlps_without_experts(name: str, dtype: torch.dtype) -> None:
    for ordered in (False, True):
        assert_equal(layer_pair(name, dtype, mlp_layer_types=["dense"] * LAYERS), ordered=ordered)


def test_a_rotation_of_a_part_of_each_head() -> None:
    assert_equal(layer_pair("phi3", partial_rotary_factor=0.5))


@pytest.mark.parametrize("activation", ["gelu", "gelu_pytorch_tanh", "swish"])
def test_activations(activation: str) -> None:
    assert_equal(layer_pair("llama", hidden_act=activation))


@pytest.mark.parametrize("heads", [1, 4])  # a key head of all query heads, and one of each
def test_query_heads_of_a_key_head(heads: int) -> None:
    assert_equal(layer_pair("llama", num_key_value_heads=heads))


@pytest.mark.parametrize(
    ("name", "quant"),
    dealt_diagonally(("llama", "mixtral", "phi3"), ("int4", "w8a16", "int8", "llm-int8", "nf4"), one_in=3),
)
def test_quantised_products(name: str, quant: str) -> None:
    """Some products round their rows, which shows where a row differs by its last bit."""
    tolerance = None if quant == "nf4" else 0.02
    assert_equal(layer_pair(name, quant=quant), tolerance=tolerance)


@pytest.mark.parametrize(
    ("quant", "changes", "fused"),
    [
        ("none", {}, True),
        ("w8a16", {}, True),
        ("int4", EVERY_SIZE_A_UNIT, True),
        ("int4", {}, False),  # the rows of a part are no whole number of units
        ("nf4", {}, False),
    ],
)
def test_products_of_the_same_rows_are_one(quant: str, changes: dict[str, Any], fused: bool) -> None:
    with without_kernels():
        pair = layer_pair("llama", quant=quant, **changes)
    names = {path for path, _ in pair.ours[0].named_modules()}
    assert ("self_attn.qkv_proj" in names, "mlp.gate_up_proj" in names) == (fused, fused)
    assert ("self_attn.q_proj" in names, "mlp.up_proj" in names) == (not fused, not fused)
    for theirs, ours in zip(pair.theirs, pair.ours, strict=True):
        assert module_bytes(ours) == module_bytes(theirs)
    assert_equal(pair, tolerance=0.02)


def test_biases_of_some_parts_alone_leave_them_apart() -> None:
    config = tiny_config("llama", attention_bias=False)
    layer = DecoderLayer(Architecture.of(FAMILIES["llama"], config), 0, 0)
    layer.self_attn.k_proj.bias = nn.Parameter(torch.ones(16), requires_grad=False)
    layer.fuse()
    names = {path for path, _ in layer.named_modules()}
    assert {"self_attn.k_proj", "mlp.gate_up_proj"} < names


def test_a_layer_notices_new_children_and_new_weights() -> None:
    pair = layer_pair("llama", num_hidden_layers=1)
    layer = pair.ours[0]
    before = pair.outputs()[1]
    layer.get_submodule("mlp.down_proj").weight.data.mul_(2)  # type: ignore[operator, union-attr]
    scaled = pair.outputs()[1]
    assert not torch.equal(scaled, before)
    assert isinstance(layer.mlp, GatedMlp)
    layer.mlp.activation = torch.tanh
    activated = pair.outputs()[1]
    assert not torch.equal(activated, scaled)
    other = copy.deepcopy(layer)
    other.get_submodule("self_attn.o_proj").weight.data.zero_()  # type: ignore[operator, union-attr]
    assert torch.equal(pair.outputs()[1], activated), "a copy has weights of its own"
    pair.ours[0] = other
    assert not torch.equal(pair.outputs()[1], activated)
    assert layer.double().get_submodule("mlp")(torch.ones(1, 32).double()).dtype == torch.float64
