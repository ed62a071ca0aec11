"""The windows, rotary parameters and positions that a config may ask for."""

from __future__ import annotations

import math
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.families.family import Family
from flowedge.models.families.parts import MLP_KINDS, RECURRENT, SLIDING, LinearRecurrence, Mamba2, key_heads
from flowedge.models.files.config_numbers import MAX_LAYERS

FULL = "full_attention"
# RoPE types whose angles are a function of a row's own position.
_FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
_PROPORTIONAL = "proportional"  # of Gemma 4's layers without a window, likewise
# RoPE types whose frequencies change with the longest position of a forward, from `fixed_rope_length` on.
_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def rope_by_layer_type(config: Any) -> dict[str | None, dict[str, Any]]:
    """The rotary parameters by layer type; under the key None where all layers share them."""
    parameters = getattr(config, "rope_parameters", None) or {"rope_type": "default"}
    if SLIDING in parameters or FULL in parameters:
        return dict(parameters)
    return {None: parameters}


def fixed_rope_length(config: Any) -> int | None:
    """The number of positions below which the rotary frequencies do not depend on the text's length.

    None where they never do.
    """
    lengths: list[int] = []
    for rope in rope_by_layer_type(config).values():
        if rope["rope_type"] == "longrope":
            lengths.append(int(rope["original_max_position_embeddings"]))
        elif rope["rope_type"] == "dynamic":
            lengths.append(int(config.max_position_embeddings))
    return min(lengths, default=None)


def max_positions(config: Any) -> int:
    """The longest sequence that the model takes, in tokens.

    It ends at `fixed_rope_length`: beyond, a model's results depend on the length of its prompt. And it ends
    where queries are scaled by their position (Ministral 3).
    """
    fixed = fixed_rope_length(config)
    lengths = [int(config.max_position_embeddings), *([] if fixed is None else [fixed])]
    for rope in rope_by_layer_type(config).values():
        if rope.get("llama_4_scaling_beta"):
            lengths.append(int(rope["original_max_position_embeddings"]))
    return min(lengths)


def check_config(family: Family, config: Any) -> None:
    """Check that FlowEdge supports what a config asks for."""
    _check_heads(config)
    if family.key_layers is not None:
        _check_gemma4(config)
    _check_experts(family, config)
    if family.recurrence is not None:
        _check_recurrent_layers(family, config)
    if family.latent is not None:
        _check_latent(config)
    for rope in rope_by_layer_type(config).values():
        kind = rope.get("rope_type", "default")
        supported = _FIXED_ROPE | _LENGTH_DEPENDENT_ROPE
        if family.key_layers is not None:
            supported |= {_PROPORTIONAL}
        if kind not in supported:
            known = ", ".join(sorted(supported))
            raise CheckpointError(f"RoPE scaling {kind!r} is not supported; supported types: {known}")
    if (kind := getattr(config, "position_embedding_type", None)) not in (None, "nope", "rope"):
        raise CheckpointError(f"position_embedding_type is {kind!r}; supported: nope, rope")
    # "vision" is about images, and none are read.
    if getattr(config, "use_bidirectional_attention", None) not in (None, False, "vision"):
        raise CheckpointError("bidirectional attention (use_bidirectional_attention) is not supported")
    if not family.attention_softcap and getattr(config, "attn_logit_softcapping", None) is not None:
        raise CheckpointError(
            f"attn_logit_softcapping is set, which transformers' {family.prefix} layers do not apply"
        )
    if family.module == "gemma3" and family.multimodal and family.logits_softcap(config) is not None:
        raise CheckpointError(
            f"final_logit_softcapping is set, which transformers' multimodal {family.prefix} does not apply"
        )
    _check_windows(family, config)


def _check_heads(config: Any) -> None:
    if config.num_hidden_layers > MAX_LAYERS:
        raise CheckpointError(
            f"there are {config.num_hidden_layers} layers; at most {MAX_LAYERS} are supported"
        )
    varied = getattr(config, "per_layer_attributes", None) or set()
    if other := varied - {"head_dim", "num_key_value_heads"}:
        raise CheckpointError(f"per_layer_config sets {', '.join(sorted(other))}, which is not supported")
    heads = config.num_attention_heads
    for kv_heads in dict.fromkeys(each.count for each in key_heads(config)):
        if min(heads, kv_heads, config.num_hidden_layers, config.hidden_size) < 1 or heads % kv_heads:
            raise CheckpointError(f"{heads} attention heads cannot share {kv_heads} KV heads evenly")


def _check_experts(family: Family, config: Any) -> None:
    for field in ("n_group", "topk_group"):
        if (count := getattr(config, field, 1)) != 1:
            raise CheckpointError(f"{field} is {count}; experts in groups are not supported")
    if size := getattr(config, "moe_latent_size", None):
        raise CheckpointError(f"moe_latent_size is {size}; experts of a latent size are not supported")
    experts = None if family.experts is None else family.experts(config)
    if experts is not None and any(experts.layers) and not 1 <= experts.chosen <= experts.count:
        raise CheckpointError(
            f"num_experts_per_tok is {experts.chosen}, and there are {experts.count} experts"
        )


def _check_gemma4(config: Any) -> None:
    shared, layers, kinds = config.num_kv_shared_layers, config.num_hidden_layers, config.layer_types
    if shared and (shared >= layers or set(kinds[layers - shared :]) - set(kinds[: layers - shared])):
        raise CheckpointError(
            f"num_kv_shared_layers is {shared}, and before the last {shared} of {layers} layers there is no "
            "layer of each of their types, whose keys they could read"
        )
    rows = getattr(config, "vocab_size_per_layer_input", config.vocab_size)
    if getattr(config, "hidden_size_per_layer_input", 0) and rows < config.vocab_size:
        raise CheckpointError(
            f"vocab_size_per_layer_input is {rows}, fewer than the {config.vocab_size} tokens of vocab_size"
        )
    if getattr(config, "enable_moe_block", False):
        sizes = {
            name: getattr(config, name) for name in ("num_experts", "top_k_experts", "moe_intermediate_size")
        }
        if missing := [name for name, value in sizes.items() if not value]:
            raise CheckpointError(f"enable_moe_block is set and {missing[0]} is not")
        if sizes["top_k_experts"] > sizes["num_experts"]:
            raise CheckpointError(
                f"top_k_experts is {sizes['top_k_experts']}, and there are {sizes['num_experts']} experts"
            )


def _check_latent(config: Any) -> None:
    """Check what the configs of GLM-4.7-Flash may ask for beside the layers of transformers."""
    if config.num_key_value_heads != config.num_attention_heads:
        raise CheckpointError(
            f"num_key_value_heads is {config.num_key_value_heads}; in latent attention each of the "
            f"{config.num_attention_heads} heads has keys"
        )
    if (share := (config.rope_parameters or {}).get("partial_rotary_factor", 1.0)) != 1:
        raise CheckpointError(f"partial_rotary_factor is {share}; qk_rope_head_dim says what rotates")
    for field, supported in (("topk_method", "noaux_tc"), ("scoring_func", "sigmoid")):
        if (found := getattr(config, field, supported)) != supported:
            raise CheckpointError(f"{field} is {found!r}; supported: {supported}")
    kinds, layers = config.mlp_layer_types, config.num_hidden_layers
    if len(kinds) != layers:
        raise CheckpointError(f"mlp_layer_types has {len(kinds)} entries for {layers} layers")
    if unknown := set(kinds) - {"dense", "sparse"}:
        raise CheckpointError(f"mlp_layer_types has {', '.join(sorted(unknown))}; supported: dense, sparse")
    dense = getattr(config, "first_k_dense_replace", None)
    if dense is not None and kinds != ["dense"] * min(dense, layers) + ["sparse"] * (layers - dense):
        raise CheckpointError(
            f"first_k_dense_replace is {dense}, but the layers of mlp_layer_types without experts are others"
        )


def _check_recurrent_layers(family: Family, config: Any) -> None:
    if len(config.layer_types) != config.num_hidden_layers:
        raise CheckpointError(
            f"layer_types has {len(config.layer_types)} entries for {config.num_hidden_layers} layers"
        )
    if getattr(config, "conv_bias", False):
        raise CheckpointError("conv_bias is set; convolutions with biases are not supported")
    net = None if family.recurrence is None else family.recurrence(config)
    other = "conv" if isinstance(net, LinearRecurrence) else "linear_attention"
    if other in config.layer_types:
        raise CheckpointError(f"layer types {other} are set, which {family.prefix} does not have")
    if isinstance(net, LinearRecurrence) and net.value_heads % net.key_heads:
        raise CheckpointError(
            f"{net.value_heads} heads of values cannot share {net.key_heads} heads of keys evenly"
        )
    if isinstance(net, Mamba2):
        _check_mamba2(config)


def _check_mamba2(config: Any) -> None:
    for field in ("mamba_proj_bias", "use_bias"):
        if getattr(config, field, False):
            raise CheckpointError(
                f"{field} is set; projections of Mamba layers with biases are not supported"
            )
    field = "mamba_hidden_act" if hasattr(config, "mamba_hidden_act") else "hidden_act"
    if (name := getattr(config, field)) not in ("silu", "swish"):
        raise CheckpointError(f"{field} is {name!r}; Mamba layers are supported with silu alone")
    if (limit := config.time_step_limit) is not None and tuple(limit) != (0.0, math.inf):
        raise CheckpointError(f"time_step_limit is {list(limit)}; steps of Mamba layers are not limited")


def _check_windows(family: Family, config: Any) -> None:
    window = getattr(config, "sliding_window", None)
    if window is not None and window < 1:
        raise CheckpointError(f"sliding_window is {window}; it has to be 1 or more")
    kinds = getattr(config, "layer_types", None) or []
    if family.windows != "by layer type":
        if family.windows == "none" and window is not None:
            raise CheckpointError(
                f"sliding_window is set, which transformers' {family.prefix} layers do not apply"
            )
        known = {SLIDING if window else FULL} | (RECURRENT if family.recurrence else set())
        if "mlp" in family.halves(config):
            known |= MLP_KINDS
        if unlike := set(kinds) - known:
            raise CheckpointError(
                f"layer types {', '.join(sorted(unlike))} are set, which transformers' {family.prefix} "
                "layers ignore"
            )
        return
    if len(kinds) != config.num_hidden_layers:
        raise CheckpointError(f"layer_types has {len(kinds)} entries for {config.num_hidden_layers} layers")
    if unknown := set(kinds) - {SLIDING, FULL}:
        raise CheckpointError(
            f"layer types {', '.join(sorted(unknown))} are not supported; supported: {SLIDING}, {FULL}"
        )
    if SLIDING in kinds and window is None:
        raise CheckpointError(f"layer_types has {SLIDING} layers and sliding_window is not set")
