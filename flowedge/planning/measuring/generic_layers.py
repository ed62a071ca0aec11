"""Decoder layers of given sizes with arbitrary weights, for timing models that the device does not hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flowedge.core.errors import BadRequestError
from flowedge.models.architecture import Architecture
from flowedge.models.block import LayerBlock
from flowedge.models.decoder_layer import DecoderLayer
from flowedge.models.experts import MixtureMlp
from flowedge.models.families.table import family_of
from flowedge.models.quant.quantize import quantize_block
from flowedge.models.rotary import Rotary
from flowedge.planning.profile.model import LatentSizes, LayerSize, LayerSizes

HEAD_WIDTH = 64
MAX_LAYERS = 64
# Times of small layers show the overhead of a layer; times of layers larger than the CPU's caches show memory
# bandwidth and arithmetic.
HIDDEN_SIZES = (256, 1024, 2048, 4096, 8192)
SMALLEST = 2


def llama_like(hidden: int) -> LayerSizes:
    """Return the sizes of a Llama layer of this width: 11/4 of it in the MLP, a KV head for each head."""
    heads = hidden // HEAD_WIDTH
    return LayerSizes(hidden=hidden, intermediate=hidden * 11 // 4, heads=heads, kv_heads=heads)


def shapes_within(stack_bytes: int, element_bytes: int) -> list[tuple[LayerSizes, int]]:
    """Return shapes with the number of layers that fit in `stack_bytes`, at most MAX_LAYERS.

    A shape of which no layer fits is left out, except the SMALLEST first shapes.
    """
    shapes = []
    for hidden in HIDDEN_SIZES:
        sizes = llama_like(hidden)
        count = stack_bytes // (LayerSize(**sizes.model_dump()).weights * element_bytes)
        if count or hidden in HIDDEN_SIZES[:SMALLEST]:
            shapes.append((sizes, max(1, min(MAX_LAYERS, count))))
    return shapes


def generic_block(
    sizes: LayerSizes,
    count: int,
    dtype: torch.dtype,
    device: torch.device,
    quant: str = "none",
    *,
    exact: bool = False,
    recurrent: bool = False,
) -> LayerBlock:
    """Make a block of `count` layers from the middle of a model: without embedding and final norm.

    Args:
        exact: whether each row's bits are to be those of the row alone.
        recurrent: whether they are the layers of `sizes` that have a state.
    """
    model_type, own = _kind(sizes, recurrent=recurrent)
    family = family_of(model_type)
    by_layer = [name for name in ("layer_type", "mlp_layer_type") if name in own]
    kinds = {f"{name}s": [own.pop(name)] * (count + 2) for name in by_layer}
    usual = {
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_size,
        "num_hidden_layers": count + 2,
        "vocab_size": 32,
    }
    config: Any = family.config(**(usual | own | kinds))
    architecture = Architecture.of(family, config)
    layers = []
    for index in range(count):
        layer = DecoderLayer(architecture, index + 1, index).to(device=device, dtype=dtype)
        if isinstance(layer.mlp, MixtureMlp):  # rows choose as if each expert suited as many of them
            nn.init.normal_(layer.mlp.gate.weight)
        for parameter in layer.parameters() if recurrent else ():  # what a state fades by has to be a number
            if parameter.ndim == 1:
                nn.init.uniform_(parameter, 0.0, 1.0)
        for parameter in layer.parameters() if sizes.latent is not None else ():
            if parameter.ndim == 3:  # made without values
                nn.init.normal_(parameter, std=0.02)
        quantize_block(layer.requires_grad_(False).eval(), quant, dtype)
        layer.fuse()
        layers.append(layer)
    block = middle_block(config, architecture, layers, dtype, device)
    block.prepare(exact=exact)
    return block


def _kind(sizes: LayerSizes, *, recurrent: bool) -> tuple[str, dict[str, Any]]:
    """Return a model type whose layers have these sizes, and what its config has beside a Llama's.

    `layer_type` of the result is the type of each layer, and `mlp_layer_type` that of its MLP.

    Raises:
        BadRequestError: when no family has such layers.
    """
    experts, states = sizes.experts, sizes.states
    if sizes.latent is not None:
        return "glm4_moe_lite", _of_latent(sizes, sizes.latent)
    if states is None:
        if experts is None:
            return "llama", {}
        return "mixtral", {"num_local_experts": experts.count, "num_experts_per_tok": experts.chosen}
    if not states.key_heads:
        if experts is not None:
            raise BadRequestError("layers with short convolutions and experts cannot be planned yet")
        own: dict[str, Any] = {"conv_L_cache": states.inputs, "block_auto_adjust_ff_dim": False}
        return "lfm2", own | {"layer_type": "conv" if recurrent else "full_attention"}
    own = {
        "linear_num_key_heads": states.key_heads,
        "linear_num_value_heads": states.value_heads,
        "linear_key_head_dim": states.key_size,
        "linear_value_head_dim": states.value_size,
        "linear_conv_kernel_dim": states.inputs,
        "layer_type": "linear_attention" if recurrent else "full_attention",
    }
    if experts is None:
        return "qwen3_5_text", own
    width = sizes.intermediate  # one of the experts that are counted is shared by all rows
    own |= {"num_experts": experts.count - 1, "num_experts_per_tok": experts.chosen - 1}
    own |= {"moe_intermediate_size": width, "shared_expert_intermediate_size": width}
    return "qwen3_5_moe_text", own


def _of_latent(sizes: LayerSizes, latent: LatentSizes) -> dict[str, Any]:
    experts = sizes.experts
    own: dict[str, Any] = {
        "num_key_value_heads": sizes.heads,
        "head_dim": latent.rotated,
        "kv_lora_rank": latent.rank,
        "q_lora_rank": latent.query_rank or None,
        "qk_rope_head_dim": latent.rotated,
        "qk_nope_head_dim": latent.plain,
        "v_head_dim": latent.value,
        "mlp_layer_type": "dense" if experts is None else "sparse",
    }
    if experts is None:
        return own
    own |= {"n_routed_experts": experts.count - 1, "num_experts_per_tok": experts.chosen - 1}
    return own | {"moe_intermediate_size": sizes.intermediate, "n_shared_experts": 1}


def middle_block(
    config: Any,
    architecture: Architecture,
    layers: list[DecoderLayer],
    dtype: torch.dtype,
    device: torch.device,
) -> LayerBlock:
    """Return the block of a model's layers from its second, without windows; it still has to be prepared."""
    stop = len(layers) + 1
    return LayerBlock(
        config,
        1,
        stop,
        layers=layers,
        windows=[None] * len(layers),
        rotary=Rotary(config, range(1, stop), device, partial_rotary=architecture.partial_rotary),
        embedding=None,
        embedding_multiplier=1.0,
        norm=None,
        dtype=dtype,
        device=device,
    )
