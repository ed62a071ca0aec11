"""The experts and the layers with a state that a config of each family asks for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from flowedge.models.families.parts import (
    RECURRENT,
    TILED,
    Clamp,
    DeltaNet,
    Experts,
    Mamba2,
    ShortConvolution,
)


def _recurrent_layers(config: Any) -> tuple[bool, ...]:
    return tuple(kind in RECURRENT for kind in config.layer_types)


def short_convolution(config: Any) -> ShortConvolution:
    return ShortConvolution(int(config.hidden_size), int(config.conv_L_cache), _recurrent_layers(config))


def delta_net(config: Any) -> DeltaNet:
    return DeltaNet(
        int(config.linear_num_key_heads),
        int(config.linear_num_value_heads),
        int(config.linear_key_head_dim),
        int(config.linear_value_head_dim),
        int(config.linear_conv_kernel_dim),
        _recurrent_layers(config),
        tiled=bool(getattr(config, TILED, False)),
    )


def _mamba2(fields: tuple[str, str, str, str, str], bias: str, config: Any) -> Mamba2 | None:
    """The state spaces of a model; None in a model with attention in all layers.

    Args:
        fields: those of the config with key_heads, value_heads, key_size, value_size and inputs of Mamba2.
        bias: that of `convolution_bias`.
    """
    layers = _recurrent_layers(config)
    key_heads, value_heads, key_size, value_size, inputs = (int(getattr(config, field)) for field in fields)
    has_bias = bool(getattr(config, bias))
    net = Mamba2(key_heads, value_heads, key_size, value_size, inputs, layers, convolution_bias=has_bias)
    return net if any(layers) else None


granite_mamba2 = partial(
    _mamba2,
    ("mamba_n_groups", "mamba_n_heads", "mamba_d_state", "mamba_d_head", "mamba_d_conv"),
    "mamba_conv_bias",
)
nemotron_mamba2 = partial(
    _mamba2,
    ("n_groups", "mamba_num_heads", "ssm_state_size", "mamba_head_dim", "conv_kernel"),
    "use_conv_bias",
)


def mixtral_experts(config: Any) -> Experts:
    return Experts(
        int(config.num_local_experts),
        int(config.num_experts_per_tok),
        int(config.intermediate_size),
        normalised=True,
        rounded=False,
        layers=(True,) * int(config.num_hidden_layers),
    )


def qwen3_experts(config: Any) -> Experts:
    def has_experts(layer: int) -> bool:
        is_sparse = config.num_experts > 0 and (layer + 1) % config.decoder_sparse_step == 0
        return layer not in config.mlp_only_layers and is_sparse

    return Experts(
        int(config.num_experts),
        int(config.num_experts_per_tok),
        int(config.moe_intermediate_size),
        normalised=bool(config.norm_topk_prob),
        rounded=True,
        layers=tuple(has_experts(layer) for layer in range(config.num_hidden_layers)),
    )


def qwen3_5_experts(config: Any) -> Experts:
    return Experts(
        int(config.num_experts),
        int(config.num_experts_per_tok),
        int(config.moe_intermediate_size),
        normalised=True,
        rounded=True,
        layers=(True,) * int(config.num_hidden_layers),
        shared=int(config.shared_expert_intermediate_size),
    )


def qwen3_next_experts(config: Any) -> Experts:
    return replace(qwen3_experts(config), shared=int(config.shared_expert_intermediate_size))


def lfm2_experts(config: Any) -> Experts:
    return Experts(
        int(config.num_experts),
        int(config.num_experts_per_tok),
        int(config.moe_intermediate_size),
        normalised=bool(config.norm_topk_prob),
        rounded=True,
        layers=tuple(layer >= config.num_dense_layers for layer in range(config.num_hidden_layers)),
        scores="sigmoid",
        choice_bias=bool(config.use_expert_bias),
        least_sum=1e-6,
        scale=float(config.routed_scaling_factor),
    )


def gpt_oss_experts(config: Any) -> Experts:
    clamp = Clamp(float(config.swiglu_limit), float(config.swiglu_alpha))
    return replace(mixtral_experts(config), rounded=True, biases=True, clamp=clamp)


def granite_experts(config: Any) -> Experts | None:
    if not config.num_local_experts:
        return None
    return replace(
        mixtral_experts(config), rounded=True, shared=int(config.shared_intermediate_size), shared_gate=False
    )


def gemma4_experts(config: Any) -> Experts | None:
    if not getattr(config, "enable_moe_block", False):
        return None
    return Experts(
        int(config.num_experts),
        int(config.top_k_experts),
        int(config.moe_intermediate_size),
        normalised=True,
        rounded=False,
        layers=(True,) * int(config.num_hidden_layers),
        beside_mlp=True,
    )


def nemotron_experts(config: Any) -> Experts | None:
    layers = tuple(kind == "moe" for kind in config.layer_types)
    shared = int(config.moe_shared_expert_intermediate_size)
    return _deepseek_experts(config, layers, shared) if any(layers) else None


def glm_experts(config: Any) -> Experts:
    layers = tuple(kind == "sparse" for kind in config.mlp_layer_types)
    shared = int(config.moe_intermediate_size) * int(config.n_shared_experts)
    return _deepseek_experts(config, layers, shared)


def _deepseek_experts(config: Any, layers: tuple[bool, ...], shared: int) -> Experts:
    """Experts as DeepSeek-V3 has them (arXiv 2412.19437, section 2.1.2); arguments as of Experts."""
    return Experts(
        int(config.n_routed_experts),
        int(config.num_experts_per_tok),
        int(config.moe_intermediate_size),
        normalised=bool(config.norm_topk_prob),
        rounded=False,
        layers=layers,
        scores="sigmoid",
        choice_bias=True,
        least_sum=1e-20,
        scale=float(config.routed_scaling_factor),
        shared=shared,
        shared_gate=False,
        unrounded=True,
    )
