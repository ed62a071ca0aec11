"""The types and bounds of the values in a config.json, checked before anything computes with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowedge.core.errors import CheckpointError

MAX_LAYERS = 4096
MAX_EXPERTS = 4096
_MAX_LIST = 65_536  # entries of a list, for each layer or for half of the values of a head
_MAX_TEXT = 65_536
_MAX_TOKEN = (1 << 31) - 1
_MAX_DIGITS = 5  # of a layer's index
_MAX_ENDS = 1024  # tokens that end an answer

# Field -> least and most value of an integer. Published models are far below.
_WHOLE: dict[str, tuple[int, int]] = {
    "vocab_size": (1, 1 << 24),
    "hidden_size": (1, 1 << 17),
    "intermediate_size": (1, 1 << 20),
    "moe_intermediate_size": (1, 1 << 20),
    "shared_intermediate_size": (1, 1 << 20),
    "num_hidden_layers": (1, MAX_LAYERS),
    "num_attention_heads": (1, 4096),
    "num_key_value_heads": (1, 4096),
    "head_dim": (2, 1 << 14),
    "max_position_embeddings": (1, 1 << 30),
    "original_max_position_embeddings": (1, 1 << 30),
    "sliding_window": (1, 1 << 30),
    "max_window_layers": (0, MAX_LAYERS),
    "num_experts": (0, MAX_EXPERTS),
    "num_local_experts": (0, MAX_EXPERTS),
    "num_experts_per_tok": (0, MAX_EXPERTS),
    "decoder_sparse_step": (1, MAX_LAYERS),
    "no_rope_layer_interval": (1, MAX_LAYERS),
    "sliding_window_pattern": (1, MAX_LAYERS),
    "linear_num_key_heads": (1, 4096),
    "linear_num_value_heads": (1, 4096),
    "linear_key_head_dim": (1, 1 << 14),
    "linear_value_head_dim": (1, 1 << 14),
    "linear_conv_kernel_dim": (1, 64),
    "full_attention_interval": (1, MAX_LAYERS),
    "mamba_n_heads": (1, 4096),
    "mamba_n_groups": (1, 4096),
    "mamba_d_state": (1, 1 << 14),
    "mamba_d_head": (1, 1 << 14),
    "mamba_d_conv": (1, 64),
    "mamba_expand": (1, 1 << 10),
    "mamba_num_heads": (1, 4096),
    "mamba_head_dim": (1, 1 << 14),
    "n_groups": (1, 4096),
    "ssm_state_size": (1, 1 << 14),
    "conv_kernel": (1, 64),
    "n_routed_experts": (0, MAX_EXPERTS),
    "moe_shared_expert_intermediate_size": (0, 1 << 20),
    "moe_latent_size": (1, 1 << 17),
    "n_shared_experts": (0, MAX_EXPERTS),
    "first_k_dense_replace": (0, MAX_LAYERS),
    "kv_lora_rank": (1, 1 << 14),
    "q_lora_rank": (1, 1 << 17),
    "qk_rope_head_dim": (2, 1 << 14),
    "qk_nope_head_dim": (1, 1 << 14),
    "v_head_dim": (1, 1 << 14),
    "n_group": (1, MAX_EXPERTS),
    "topk_group": (1, MAX_EXPERTS),
    "conv_L_cache": (1, 64),
    "num_dense_layers": (0, MAX_LAYERS),
    "global_head_dim": (2, 1 << 14),
    "num_global_key_value_heads": (1, 4096),
    "num_kv_shared_layers": (0, MAX_LAYERS),
    "hidden_size_per_layer_input": (0, 1 << 14),
    "vocab_size_per_layer_input": (1, 1 << 24),
    "top_k_experts": (1, MAX_EXPERTS),
    "block_multiple_of": (1, 1 << 20),
    "draft_vocab_size": (1, 1 << 24),
    "target_hidden_size": (1, 1 << 17),
}
# Field -> least and most value of a number. A value of 0 is refused where the least is above 0.
_REAL: dict[str, tuple[float, float]] = {
    "rms_norm_eps": (0.0, 1.0),
    "norm_eps": (0.0, 1.0),
    "layer_norm_epsilon": (0.0, 1.0),
    "block_ffn_dim_multiplier": (1e-3, 1e3),
    "rope_theta": (1e-3, 1e15),
    "rope_local_base_freq": (1e-3, 1e15),
    "factor": (1e-6, 1e6),
    "attention_factor": (1e-6, 1e6),
    "low_freq_factor": (1e-6, 1e6),
    "high_freq_factor": (1e-6, 1e6),
    "beta_fast": (1e-6, 1e6),
    "beta_slow": (1e-6, 1e6),
    "mscale": (0.0, 1e6),
    "mscale_all_dim": (0.0, 1e6),
    "short_mscale": (1e-6, 1e6),
    "long_mscale": (1e-6, 1e6),
    "partial_rotary_factor": (1e-3, 1.0),
    "query_pre_attn_scalar": (1e-3, 1e9),
    "final_logit_softcapping": (1e-3, 1e9),
    "attn_logit_softcapping": (1e-3, 1e9),
    "attention_multiplier": (1e-9, 1e9),
    "embedding_multiplier": (1e-9, 1e9),
    "residual_multiplier": (1e-9, 1e9),
    "logits_scaling": (1e-9, 1e9),
    "initializer_range": (0.0, 1e6),
    "attention_dropout": (0.0, 1.0),
    "resid_pdrop": (0.0, 1.0),
    "embd_pdrop": (0.0, 1.0),
    "router_aux_loss_coef": (0.0, 1e9),
    "router_jitter_noise": (0.0, 1e9),
    "routed_scaling_factor": (1e-6, 1e6),
    "swiglu_limit": (1e-3, 1e6),
    "swiglu_alpha": (1e-3, 1e6),
}
_BOOLEAN = frozenset(
    {
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "use_sliding_window",
        "norm_topk_prob",
        "use_expert_bias",
        "use_cache",
        "truncate",
        "conv_bias",
        "mamba_conv_bias",
        "mamba_proj_bias",
        "use_bias",
        "use_conv_bias",
        "block_auto_adjust_ff_dim",
        "rope_interleave",
        "bias",
        "attention_k_eq_v",
        "enable_moe_block",
        "use_double_wide_mlp",
    }
)
_TEXT = frozenset(
    {
        "model_type",
        "hidden_act",
        "hidden_activation",
        "mlp_hidden_act",
        "mamba_hidden_act",
        "hybrid_override_pattern",
        "position_embedding_type",
        "topk_method",
        "scoring_func",
        "rope_type",
        "type",
        "dtype",
        "torch_dtype",
    }
)
_TOKENS = frozenset({"bos_token_id", "eos_token_id", "pad_token_id"})
# Lists of whole numbers: least and most value of an entry.
_WHOLES: dict[str, tuple[int, int]] = {"mlp_only_layers": (0, MAX_LAYERS), "no_rope_layers": (0, 1)}
_NAMES = frozenset({"layer_types", "layers_block_type", "mlp_layer_types"})
_REALS = frozenset({"short_factor", "long_factor"})
# Objects with fields of these names, at any depth.
_OBJECTS = frozenset({"rope_parameters", "rope_scaling", "full_attention", "sliding_attention"})
_OF_LAYERS = "per_layer_config"  # an object that has objects with fields of these names, by the layer's index
# Fields that libraries cannot do without; null stands for a default in all others.
_NEVER_NULL = frozenset(
    {
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
        "rms_norm_eps",
    }
)


def check_values(config: Mapping[str, Any], path: Path | str, within: str = "") -> None:
    """Check the known fields of a config, or of an object in it. FlowEdge reads no other fields.

    Args:
        path: the file to name in errors.
        within: the name of the object of the file that holds the fields; "" for the file itself.

    Raises:
        CheckpointError: when a value has another type than its field, or is out of bounds.
    """
    for name, value in config.items():
        field = f"{within}.{name}" if within else name
        if value is not None:
            _check_value(name, value, path, field)
        elif name in _NEVER_NULL:
            raise _wrong(path, field, value, "a number")


def check_token_ids(value: object, field: str, path: Path | str) -> list[int]:
    """The token ids in a field, which holds a number, a list of numbers or null.

    Raises:
        CheckpointError: when the field holds something else.
    """
    entries: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
    if len(entries) > _MAX_ENDS or not all(_is_whole(entry, -1, _MAX_TOKEN) for entry in entries):
        raise _wrong(path, field, value, f"a token id or at most {_MAX_ENDS} token ids")
    return [int(entry) for entry in entries]


def _check_value(name: str, value: object, path: Path | str, field: str) -> None:
    if name in _TOKENS:
        check_token_ids(value, field, path)
    elif name in _OBJECTS or name == _OF_LAYERS:
        if not isinstance(value, dict):
            raise _wrong(path, field, value, "an object")
        if name in _OBJECTS:
            check_values(value, path, field)
            return
        for layer, own in value.items():
            if not (layer.isdecimal() and len(layer) <= _MAX_DIGITS and isinstance(own, dict)):
                raise _wrong(path, f"{field}.{layer[:80]}", own, "an object at the index of a layer")
            check_values(own, path, f"{field}.{layer}")
    elif (expected := _expected_scalar(name, value) or _expected_list(name, value)) is not None:
        raise _wrong(path, field, value, expected)


def _expected_scalar(name: str, value: object) -> str | None:
    """Return what a field of one value must hold, as "true or false"; None if the value is right."""
    if name == "mamba_d_head" and value == "auto":  # what the heads' number leaves
        return None
    if name in _WHOLE and not _is_whole(value, *_WHOLE[name]):
        return f"an integer from {_WHOLE[name][0]} to {_WHOLE[name][1]}"
    if name in _REAL and not _is_real(value, *_REAL[name]):
        return f"a number from {_REAL[name][0]:g} to {_REAL[name][1]:g}"
    if name in _BOOLEAN and not isinstance(value, bool):
        return "true or false"
    if name in _TEXT and not (isinstance(value, str) and len(value) <= _MAX_TEXT):
        return "a text"
    return None


def _expected_list(name: str, value: object) -> str | None:
    """Return what a list must hold, as "a list of positive numbers"; None if the value is right."""
    entries: list[Any] = value if isinstance(value, list) and len(value) <= _MAX_LIST else [None]
    if name in _NAMES and not all(isinstance(kind, str) for kind in entries):
        return f"a list of at most {_MAX_LIST} names"
    if name in _WHOLES and not all(_is_whole(entry, *_WHOLES[name]) for entry in entries):
        return f"a list of integers from {_WHOLES[name][0]} to {_WHOLES[name][1]}"
    if name in _REALS and not all(_is_real(entry, 1e-6, 1e9) for entry in entries):
        return "a list of positive numbers"
    return None


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_real(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _wrong(path: Path | str, field: str, value: object, wanted: str) -> CheckpointError:
    shown = "null" if value is None else repr(value)
    return CheckpointError(f"{path}: {field} is {shown[:80]}, not {wanted}")
