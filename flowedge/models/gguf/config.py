"""The config of a GGUF model, as the config.json of a Hugging Face checkpoint would have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.families.parts import TILED
from flowedge.models.gguf.architectures import (
    LONG_FACTORS,
    OUTPUT,
    ROPE_FACTORS,
    SHORT_FACTORS,
    TOKEN_EMBEDDING,
    has_bias,
)
from flowedge.models.gguf.metadata import Metadata
from flowedge.models.gguf.refusals import check_computation
from flowedge.models.gguf.rope import longrope_parameters, rope_parameters

_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# llama.cpp ends an answer at a token of such a text, and so do the generation configs of the models that have
# the token. Converters store one end token only: that of the text, not that of a turn of the conversation.
_TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|end|>",
        "<end_of_turn>",
        "<turn|>",
        "<end_of_utterance>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<EOT>",
    }
)

# Of gpt-oss, whose `<|end|>` ends a part of an answer.
_HARMONY_TEXTS = frozenset({"<|return|>", "<|call|>"})


def end_tokens(metadata: Metadata, vocab_size: int) -> list[int]:
    """The ids of the tokens that end an answer; those of the file's keys come first.

    Raises:
        CheckpointError: when a key names no token.
    """
    found = [metadata.token(f"tokenizer.ggml.{key}", vocab_size) for key in _KEYS]
    tokens = metadata.values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list):
        texts = _HARMONY_TEXTS if _HARMONY_TEXTS.issubset(tokens) else _TEXTS
        found += [index for index, text in enumerate(tokens[:vocab_size]) if text in texts]
    return [token for token in dict.fromkeys(found) if token is not None]


ARCHITECTURE_KEY = "gguf_architecture"  # of a config.json: its tensors are named and stored as in a GGUF file
_LFM2 = frozenset({"lfm2", "lfm2moe"})
_NEMOTRON = frozenset({"nemotron_h", "nemotron_h_moe"})
_EPSILONS = dict.fromkeys(_LFM2, "norm_eps") | dict.fromkeys(_NEMOTRON, "layer_norm_epsilon")
_SIZES_BY_LAYER = _LFM2 | _NEMOTRON | {"granitehybrid"}
_PARTLY_ROTATED = (
    frozenset({"deepseek2", "phi3", "qwen35", "qwen35moe"}) | _NEMOTRON
)  # which does not rotate at all
_SIGMOID = 2  # a function of routers
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62
_GEMMA3_LOCAL_BASE = 10000.0
_STOPPING = 1e29  # a divisor of a frequency that leaves no rotation
# The context and the window of the Phi 3 models whose first files do not store the window.
_PHI3_CONTEXT, _PHI3_WINDOW = 4096, 2047


@dataclass(frozen=True)
class ModelFacts:
    """Everything that a config is made from.

    Attributes:
        shapes: the shape of each stored tensor, by its name in the file.
        factors: (name of a tensor of rotary factors) -> its values; None if there is no tensor of the name.
    """

    metadata: Metadata
    shapes: Mapping[str, tuple[int, ...]]
    factors: Callable[[str], Sequence[float] | None]

    @property
    def head_size(self) -> int:
        metadata = self.metadata
        heads = metadata.count(".attention.head_count")
        default = metadata.count(".embedding_length") // heads
        if metadata.architecture in ("llama", "smollm3") and not metadata.has(".attention.key_length"):
            default = metadata.count(".rope.dimension_count", default)
        return metadata.count(".attention.key_length", default)

    @property
    def kv_heads(self) -> int:
        """The key heads of layers with attention."""
        return self.of_layers(".attention.head_count_kv", self.metadata.count(".attention.head_count"))

    def of_layers(self, key: str, default: int | None = None) -> int:
        """An integer above 0 that some files have for each layer, and 0 for layers of another kind."""
        metadata = self.metadata
        stored = metadata.values.get(metadata.architecture + key)
        if metadata.architecture == "gemma4":
            return self.by_layer(key)[0]
        if metadata.architecture not in _SIZES_BY_LAYER or not isinstance(stored, list):
            return metadata.count(key, default)
        counts = {value for value in stored if type(value) is int and value}
        if len(counts) != 1:
            found = str(stored)[:80]
            raise CheckpointError(f"{metadata.architecture}{key} is {found}, not one number and zeros")
        return Metadata({key: counts.pop()}, "").count(key)

    def by_layer(self, key: str) -> list[int]:
        """A count for each layer, of which some files have a list and others one for all.

        Raises:
            CheckpointError: when it is neither.
        """
        metadata, layers = self.metadata, self.metadata.layers
        stored = metadata.values.get(metadata.architecture + key)
        if not isinstance(stored, list):
            return [metadata.count(key)] * layers
        if len(stored) != layers:
            name = f"{metadata.architecture}{key}"
            raise CheckpointError(f"{name} has {len(stored)} entries for {layers} layers")
        return [Metadata({key: value}, "").count(key) for value in stored]

    @property
    def vocab_size(self) -> int:
        shape = self.shapes.get(TOKEN_EMBEDDING)
        if shape is None or len(shape) != 2:
            raise CheckpointError(f"tensor {TOKEN_EMBEDDING} is missing or no matrix")
        return shape[0]

    @property
    def rope(self) -> dict[str, Any]:
        return rope_parameters(self.metadata, self.factors(ROPE_FACTORS), self.head_size)


def make_config(facts: ModelFacts) -> dict[str, Any]:
    """The content of config.json.

    Raises:
        CheckpointError: when metadata are missing, impossible or not supported.
    """
    metadata, vocab_size = facts.metadata, facts.vocab_size
    check_computation(metadata)
    _check_rotation(facts)
    common: dict[str, Any] = {
        ARCHITECTURE_KEY: metadata.architecture,
        "vocab_size": vocab_size,
        "hidden_size": metadata.count(".embedding_length"),
        "num_hidden_layers": metadata.layers,
        "num_attention_heads": metadata.count(".attention.head_count"),
        "num_key_value_heads": facts.kv_heads,
        "max_position_embeddings": metadata.count(".context_length"),
        _EPSILONS.get(metadata.architecture, "rms_norm_eps"): metadata.number(
            ".attention.layer_norm_rms_epsilon"
        ),
        "tie_word_embeddings": OUTPUT not in facts.shapes,
        "bos_token_id": metadata.token("tokenizer.ggml.bos_token_id", vocab_size),
        "eos_token_id": metadata.token("tokenizer.ggml.eos_token_id", vocab_size),
        "pad_token_id": metadata.token_or_none("tokenizer.ggml.padding_token_id", vocab_size),
    }
    if metadata.has(".feed_forward_length"):
        common["intermediate_size"] = facts.of_layers(".feed_forward_length")
    return common | _SPECIAL[metadata.architecture](facts)


def make_generation_config(facts: ModelFacts) -> dict[str, Any]:
    """The content of generation_config.json: the tokens that begin and end a text, and the sampling."""
    metadata, vocab_size = facts.metadata, facts.vocab_size
    keys = {"temperature": "temp", "top_p": "top_p", "top_k": "top_k"}
    sampling = {name: metadata.values.get(f"general.sampling.{key}") for name, key in keys.items()}
    return {
        **sampling,
        "do_sample": any(sampling.values()),
        "bos_token_id": metadata.token("tokenizer.ggml.bos_token_id", vocab_size),
        "eos_token_id": end_tokens(metadata, vocab_size) or None,
        "pad_token_id": metadata.token_or_none("tokenizer.ggml.padding_token_id", vocab_size),
    }


def _check_rotation(facts: ModelFacts) -> None:
    """Check that whole heads are rotated, as the layers of most architectures do."""
    metadata, size = facts.metadata, facts.head_size
    rotated = metadata.count(".rope.dimension_count", size)
    if metadata.architecture not in _PARTLY_ROTATED and rotated != size:
        raise CheckpointError(
            f"{metadata.architecture}.rope.dimension_count is {rotated} of the {size} values of a head; "
            "partial rotation is not supported in this architecture"
        )


def _biases(facts: ModelFacts) -> dict[str, Any]:
    return {
        "attention_bias": has_bias(facts.shapes, "attn_q"),
        "mlp_bias": has_bias(facts.shapes, "ffn_up"),
    }


def _window(metadata: Metadata) -> int | None:
    """The sliding window in positions; None if there is none, which some files say by 0."""
    return metadata.count(".attention.sliding_window", 0, least=0) or None


def _llama(facts: ModelFacts) -> dict[str, Any]:
    """Llama, Mistral or Mixtral, which share an architecture."""
    metadata, window = facts.metadata, _window(facts.metadata)
    shared = {"head_dim": facts.head_size, "rope_parameters": facts.rope}
    if metadata.count(".expert_count", 0, least=0):
        return shared | {
            "model_type": "mixtral",
            "num_local_experts": metadata.count(".expert_count"),
            "num_experts_per_tok": metadata.count(".expert_used_count"),
            "sliding_window": window,
        }
    if window is not None:
        return shared | {"model_type": "mistral", "sliding_window": window}
    return shared | {"model_type": "llama"} | _biases(facts)


def _mistral3(facts: ModelFacts) -> dict[str, Any]:
    """The text model of Ministral 3."""
    rope = facts.rope
    if scale := facts.metadata.number(".attention.temperature_scale", 0.0):
        rope["llama_4_scaling_beta"] = scale
    return {
        "model_type": "ministral3",
        "head_dim": facts.head_size,
        "rope_parameters": rope,
        "sliding_window": _window(facts.metadata),
    }


def _granite(facts: ModelFacts) -> dict[str, Any]:
    metadata = facts.metadata
    _no_window(metadata)
    multipliers = {
        "attention_multiplier": ".attention.scale",
        "embedding_multiplier": ".embedding_scale",
        "residual_multiplier": ".residual_scale",
        "logits_scaling": ".logit_scale",
    }
    return {
        "model_type": "granite",
        "rope_parameters": facts.rope,
        **{name: metadata.number(key, 1.0) for name, key in multipliers.items()},
        **_biases(facts),
    }


def _granite_hybrid(facts: ModelFacts) -> dict[str, Any]:
    """Granite 4 with state spaces; a file of the model without them is one of Granite 3."""
    metadata = facts.metadata
    heads, values = metadata.count(".ssm.time_step_rank"), metadata.count(".ssm.inner_size")
    if values % heads or values % metadata.count(".embedding_length"):
        raise CheckpointError(
            f"{values} values of a state space are no multiple of {heads} heads, or of the width of rows"
        )
    rotates = metadata.values.get("granitehybrid.rope.scaling.finetuned", True)
    return _granite(facts) | {
        "model_type": "granitemoehybrid",
        "attention_bias": any(name.endswith(".attn_q.bias") for name in facts.shapes),
        "position_embedding_type": "rope" if rotates else "nope",
        "layer_types": _layer_kinds(facts, "linear_attention"),
        "num_local_experts": metadata.count(".expert_count", 0, least=0),
        "num_experts_per_tok": metadata.count(".expert_used_count", 0, least=0),
        "shared_intermediate_size": metadata.count(
            ".expert_shared_feed_forward_length", metadata.count(".feed_forward_length")
        ),
        "mamba_n_heads": heads,
        "mamba_d_head": values // heads,
        "mamba_expand": values // metadata.count(".embedding_length"),
        "mamba_n_groups": metadata.count(".ssm.group_count"),
        "mamba_d_state": metadata.count(".ssm.state_size"),
        "mamba_d_conv": metadata.count(".ssm.conv_kernel"),
        "mamba_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in facts.shapes),
    }


def _smollm3(facts: ModelFacts) -> dict[str, Any]:
    _no_window(facts.metadata)
    # A file does not store which layers have no rotation: every fourth, in all published models.
    return {"model_type": "smollm3", "rope_parameters": facts.rope, **_biases(facts)}


def _qwen2(facts: ModelFacts) -> dict[str, Any]:
    _no_window(facts.metadata)
    return {"model_type": "qwen2", "head_dim": facts.head_size, "rope_parameters": facts.rope}


def _qwen3(facts: ModelFacts) -> dict[str, Any]:
    _no_window(facts.metadata)
    return {
        "model_type": "qwen3",
        "head_dim": facts.head_size,
        "rope_parameters": facts.rope,
        "attention_bias": has_bias(facts.shapes, "attn_q"),
    }


def _expert_sizes(metadata: Metadata) -> dict[str, Any]:
    return {
        "num_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "moe_intermediate_size": metadata.count(".expert_feed_forward_length"),
    }


def _qwen3_moe(facts: ModelFacts) -> dict[str, Any]:
    metadata = facts.metadata
    layers = metadata.layers
    return _qwen3(facts) | {
        "model_type": "qwen3_moe",
        **_expert_sizes(metadata),
        "mlp_only_layers": [
            index for index in range(layers) if f"blk.{index}.ffn_gate_inp.weight" not in facts.shapes
        ],
        # A file does not store it: true in all published models.
        "norm_topk_prob": True,
    }


def _gpt_oss(facts: ModelFacts) -> dict[str, Any]:
    """gpt-oss, whose file has neither the bounds of its experts nor where YaRN's ramp ends: as published."""
    metadata = facts.metadata
    rope = facts.rope
    return {
        "model_type": "gpt_oss",
        "head_dim": facts.head_size,
        "rope_parameters": rope | ({"truncate": False} if rope["rope_type"] == "yarn" else {}),
        "sliding_window": metadata.count(".attention.sliding_window"),
        "intermediate_size": metadata.count(".expert_feed_forward_length"),
        "num_local_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "attention_bias": has_bias(facts.shapes, "attn_q"),
        **_layer_types(metadata),
    }


def _layer_kinds(facts: ModelFacts, recurrent: str) -> list[str]:
    """The kind of each layer, which is `recurrent` for those without queries."""
    return [
        "full_attention" if f"blk.{index}.attn_q.weight" in facts.shapes else recurrent
        for index in range(facts.metadata.layers)
    ]


def _qwen35(facts: ModelFacts) -> dict[str, Any]:
    """Qwen 3.5, whose heads of values lie as llama.cpp repeats keys: all first ones, then all second ones."""
    metadata, size = facts.metadata, facts.head_size
    heads = metadata.count(".ssm.time_step_rank")
    values = metadata.count(".ssm.inner_size")
    if values % heads:
        raise CheckpointError(f"{values} values of a gated delta net are not divided into {heads} heads")
    rotated = metadata.count(".rope.dimension_count", size // 4)
    return {
        "model_type": "qwen3_5_text",
        "head_dim": size,
        "rope_parameters": facts.rope | {"partial_rotary_factor": rotated / size},
        "attention_bias": has_bias(facts.shapes, "attn_k"),
        "layer_types": _layer_kinds(facts, "linear_attention"),
        "linear_num_key_heads": metadata.count(".ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": metadata.count(".ssm.state_size"),
        "linear_value_head_dim": values // heads,
        "linear_conv_kernel_dim": metadata.count(".ssm.conv_kernel"),
        "mtp_num_hidden_layers": metadata.count(".nextn_predict_layers", 0, least=0),
        TILED: True,
    }


def _qwen35_moe(facts: ModelFacts) -> dict[str, Any]:
    metadata = facts.metadata
    return _qwen35(facts) | {
        "model_type": "qwen3_5_moe_text",
        **_expert_sizes(metadata),
        "shared_expert_intermediate_size": metadata.count(".expert_shared_feed_forward_length"),
    }


def _nemotron(facts: ModelFacts) -> dict[str, Any]:
    """Nemotron-H, each of whose layers is known by its tensors."""
    metadata = facts.metadata
    heads, values = metadata.count(".ssm.time_step_rank"), metadata.count(".ssm.inner_size")
    if values % heads:
        raise CheckpointError(f"{values} values of a state space are no multiple of {heads} heads")
    tensors = {"attn_q": "full_attention", "ssm_in": "linear_attention", "ffn_gate_inp": "moe"}
    kinds = [
        next((kind for name, kind in tensors.items() if f"blk.{index}.{name}.weight" in facts.shapes), "mlp")
        for index in range(metadata.layers)
    ]
    config = {
        "model_type": "nemotron_h",
        "head_dim": facts.head_size,
        "layers_block_type": kinds,
        "mamba_num_heads": heads,
        "mamba_head_dim": values // heads,
        "n_groups": metadata.count(".ssm.group_count"),
        "ssm_state_size": metadata.count(".ssm.state_size"),
        "conv_kernel": metadata.count(".ssm.conv_kernel"),
        "use_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in facts.shapes),
        "mlp_bias": any(name.endswith(".ffn_up.bias") for name in facts.shapes),
    }
    if "moe" not in kinds:
        return config
    return config | {
        "n_routed_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "moe_intermediate_size": metadata.count(".expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": metadata.count(".expert_shared_feed_forward_length"),
        "norm_topk_prob": bool(metadata.values.get(f"{metadata.architecture}.expert_weights_norm", True)),
        "routed_scaling_factor": metadata.number(".expert_weights_scale", 1.0),
    }


def _deepseek2(facts: ModelFacts) -> dict[str, Any]:
    """GLM-4.7-Flash, and other models with latent attention that are computed alike."""
    metadata = facts.metadata
    rope, layers = facts.rope, metadata.layers
    if rope["rope_type"] != "default":
        raise CheckpointError(f"RoPE scaling {rope['rope_type']!r} is not supported in files of deepseek2")
    gate = metadata.values.get("deepseek2.expert_gating_func")
    if gate != _SIGMOID:  # a router by softmax where it is missing
        raise CheckpointError(f"deepseek2.expert_gating_func is {gate}, not {_SIGMOID}: routers by sigmoids")
    rotated = metadata.count(".rope.dimension_count")
    dense = metadata.count(".leading_dense_block_count", 0, least=0, most=layers)
    return {
        "model_type": "glm4_moe_lite",
        "num_key_value_heads": metadata.count(".attention.head_count"),
        "rope_parameters": rope,
        "rope_interleave": True,
        "attention_bias": has_bias(facts.shapes, "attn_kv_a_mqa"),
        "q_lora_rank": metadata.count(".attention.q_lora_rank", 0, least=0) or None,
        "kv_lora_rank": metadata.count(".attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": metadata.count(".attention.key_length_mla", least=rotated + 1) - rotated,
        "v_head_dim": metadata.count(".attention.value_length_mla"),
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * (layers - dense),
        "n_routed_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "n_shared_experts": metadata.count(".expert_shared_count", 0, least=0),
        "moe_intermediate_size": metadata.count(".expert_feed_forward_length"),
        "norm_topk_prob": bool(metadata.values.get("deepseek2.expert_weights_norm", False)),
        "routed_scaling_factor": metadata.number(".expert_weights_scale", 1.0),
        "num_nextn_predict_layers": metadata.count(".nextn_predict_layers", 0, least=0),
    }


def _lfm2(facts: ModelFacts) -> dict[str, Any]:
    """LFM2, whose file has the width of its MLPs as it is."""
    return {
        "model_type": "lfm2",
        "rope_parameters": facts.rope,
        "layer_types": _layer_kinds(facts, "conv"),
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": facts.metadata.count(".shortconv.l_cache"),
    }


def _lfm2_moe(facts: ModelFacts) -> dict[str, Any]:
    metadata = facts.metadata
    return _lfm2(facts) | {
        "model_type": "lfm2_moe",
        **_expert_sizes(metadata),
        "num_dense_layers": metadata.count(".leading_dense_block_count", 0, least=0),
        "use_expert_bias": any(name.endswith(".exp_probs_b.bias") for name in facts.shapes),
        # A file does not store it: true in all published models.
        "norm_topk_prob": True,
    }


def _gemma2(facts: ModelFacts) -> dict[str, Any]:
    metadata = facts.metadata
    return {
        "model_type": "gemma2",
        "head_dim": facts.head_size,
        "rope_parameters": facts.rope,
        "sliding_window": metadata.count(".attention.sliding_window"),
        "query_pre_attn_scalar": _query_scalar(facts, _GEMMA2_27B_LAYERS),
        "attn_logit_softcapping": metadata.number(".attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.number(".final_logit_softcapping", 30.0),
    }


def _gemma3(facts: ModelFacts) -> dict[str, Any]:
    metadata = facts.metadata
    local = {
        "rope_type": "default",
        "rope_theta": metadata.number(".rope.freq_base_swa", _GEMMA3_LOCAL_BASE),
    }
    cap = ".final_logit_softcapping"
    return {
        "model_type": "gemma3_text",
        "head_dim": facts.head_size,
        "rope_parameters": {
            "full_attention": rope_parameters(metadata, None, facts.head_size),
            "sliding_attention": local,
        },
        "sliding_window": metadata.count(".attention.sliding_window"),
        "query_pre_attn_scalar": _query_scalar(facts, _GEMMA3_27B_LAYERS),
        "final_logit_softcapping": metadata.number(cap) if metadata.has(cap) else None,
        **_layer_types(metadata),
    }


def _gemma4(facts: ModelFacts) -> dict[str, Any]:
    """Gemma 4, of whose file the layers without a window have head sizes and angles of their own."""
    metadata, layers = facts.metadata, facts.metadata.layers
    kinds = _layer_types(metadata).get("layer_types")
    if kinds is None or len(kinds) != layers:
        key = "gemma4.attention.sliding_window_pattern"
        raise CheckpointError(f"{key} does not say for each of {layers} layers whether it has a window")
    full = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    key_heads, widths = facts.by_layer(".attention.head_count_kv"), facts.by_layer(".feed_forward_length")
    near = [key_heads[layer] for layer in range(layers) if layer not in full] or key_heads
    shared = metadata.count(".attention.shared_kv_layers", 0, least=0, most=layers - 1)
    own = layers - shared
    wide = bool(shared) and widths[own] == 2 * widths[0]
    if widths != [widths[0]] * own + [widths[0] * (2 if wide else 1)] * shared:
        raise CheckpointError(
            "gemma4.feed_forward_length is not one width, doubled in layers that share keys or not"
        )
    head_size = metadata.count(".attention.key_length_swa")
    for lengths, size in (("_length", facts.head_size), ("_length_swa", head_size)):
        if metadata.count(f".attention.value{lengths}", size) != size:
            raise CheckpointError(f"gemma4.attention.value{lengths} is not key{lengths}, which is {size}")
    if metadata.count(".rope.dimension_count_swa", head_size) != head_size:
        raise CheckpointError("gemma4.rope.dimension_count_swa is not attention.key_length_swa")
    table, cap = facts.shapes.get("per_layer_token_embd.weight", ()), ".final_logit_softcapping"
    return {
        "model_type": "gemma4_text",
        "layer_types": kinds,
        "head_dim": head_size,
        "num_key_value_heads": near[0],
        "per_layer_config": {
            str(layer): {"head_dim": facts.head_size, "num_key_value_heads": key_heads[layer]}
            for layer in full
        },
        "attention_k_eq_v": any(
            f"blk.{layer}.attn_v.weight" not in facts.shapes for layer in full if layer < own
        ),
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": wide,
        "rope_parameters": {
            "full_attention": _proportional(facts),
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": metadata.number(".rope.freq_base_swa", _GEMMA3_LOCAL_BASE),
            },
        },
        "sliding_window": metadata.count(".attention.sliding_window"),
        "hidden_size_per_layer_input": metadata.count(".embedding_length_per_layer_input", 0, least=0),
        "vocab_size_per_layer_input": table[0] if len(table) == 2 else facts.vocab_size,
        "final_logit_softcapping": metadata.number(cap) if metadata.has(cap) else None,
        **_gemma4_experts(metadata),
    }


def _gemma4_experts(metadata: Metadata) -> dict[str, Any]:
    if not metadata.count(".expert_count", 0, least=0):
        return {"enable_moe_block": False}
    sizes = _expert_sizes(metadata)
    return {"enable_moe_block": True, "top_k_experts": sizes.pop("num_experts_per_tok"), **sizes}


def _proportional(facts: ModelFacts) -> dict[str, Any]:
    """The rotary parameters of layers without a window: the file's factors stop the frequencies behind some.

    Raises:
        CheckpointError: when the factors are others.
    """
    factors = facts.factors(ROPE_FACTORS)
    if factors is None:
        raise CheckpointError(f"tensor {ROPE_FACTORS} is missing")
    rotated = sum(factor == 1 for factor in factors)
    stops = [1.0] * rotated == list(factors[:rotated]) and all(f >= _STOPPING for f in factors[rotated:])
    if len(factors) != facts.head_size // 2 or not rotated or not stops:
        raise CheckpointError(f"{ROPE_FACTORS} is not {facts.head_size // 2} factors, first 1 and then 1e30")
    return {
        "rope_type": "proportional",
        "rope_theta": facts.metadata.number(".rope.freq_base"),
        "partial_rotary_factor": rotated / len(factors),
    }


def _layer_types(metadata: Metadata) -> dict[str, Any]:
    """The kind of each layer, where the file stores whether it has a window; otherwise the family's rule."""
    windowed = metadata.values.get(f"{metadata.architecture}.attention.sliding_window_pattern")
    if windowed is None:
        return {}
    if type(windowed) is int and windowed > 0:  # the last of so many layers has no window
        layers = metadata.layers
        windowed = [bool((index + 1) % windowed) for index in range(layers)]
    if not isinstance(windowed, list) or not all(isinstance(value, bool) for value in windowed):
        raise CheckpointError(
            "sliding_window_pattern is not supported unless it is a count or a bool for each layer"
        )
    return {"layer_types": ["sliding_attention" if value else "full_attention" for value in windowed]}


def _query_scalar(facts: ModelFacts, layers_of_27b: int) -> int:
    """The size that scores are scaled by. A file does not store it; the 27B models have one of their own."""
    metadata = facts.metadata
    if metadata.count(".block_count") == layers_of_27b:
        return metadata.count(".embedding_length") // metadata.count(".attention.head_count")
    return facts.head_size


def _phi3(facts: ModelFacts) -> dict[str, Any]:
    metadata, size = facts.metadata, facts.head_size
    rotated = metadata.count(".rope.dimension_count", size)
    short, long = facts.factors(SHORT_FACTORS), facts.factors(LONG_FACTORS)
    context = original = metadata.count(".context_length")
    if short is not None and long is not None:
        rope, original = longrope_parameters(metadata, short, long)
    else:
        rope = facts.rope
    window = _window(metadata)
    if not metadata.has(".attention.sliding_window") and context == _PHI3_CONTEXT:
        window = _PHI3_WINDOW
    return {
        "model_type": "phi3",
        "rope_parameters": rope | {"partial_rotary_factor": rotated / size},
        "original_max_position_embeddings": original,
        "sliding_window": window,
    }


def _no_window(metadata: Metadata) -> None:
    window = _window(metadata)
    if window is not None and window < metadata.count(".context_length"):
        raise CheckpointError(
            f"{metadata.architecture}.attention.sliding_window is {window}, and the file does not say which "
            "layers have it"
        )


_SPECIAL: dict[str, Callable[[ModelFacts], dict[str, Any]]] = {
    "llama": _llama,
    "mistral3": _mistral3,
    "granite": _granite,
    "granitehybrid": _granite_hybrid,
    "smollm3": _smollm3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3_moe,
    "deepseek2": _deepseek2,
    "gpt-oss": _gpt_oss,
    "nemotron_h": _nemotron,
    "nemotron_h_moe": _nemotron,
    "lfm2": _lfm2,
    "lfm2moe": _lfm2_moe,
    "qwen35": _qwen35,
    "qwen35moe": _qwen35_moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "phi3": _phi3,
}
