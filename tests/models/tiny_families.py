"""A small random checkpoint of every supported architecture, with its special features switched on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)

VOCAB = 128
LAYERS = 4
WINDOW = 8
SHARED: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


LLAMA3 = rope(
    "llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
# Queries are scaled from position 128 on, which is behind these tests.
MINISTRAL = rope(
    "yarn",
    factor=4.0,
    original_max_position_embeddings=128,
    mscale=1.0,
    mscale_all_dim=1.0,
    llama_4_scaling_beta=0.1,
)
# Short factors serve the 64 positions of the original length, and those alone are within these tests.
LONGROPE = {
    "original_max_position_embeddings": 64,
    **rope(
        "longrope",
        short_factor=[1.0, 1.3, 2.0, 3.0],
        long_factor=[1.0, 4.0, 8.0, 16.0],
        original_max_position_embeddings=64,
    ),
}
GEMMA = {
    "head_dim": 16,
    "query_pre_attn_scalar": 20,
    "sliding_window": WINDOW,
    "final_logit_softcapping": 3.0,
}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 6}

DELTA_NET: dict[str, Any] = {
    **rope("default", partial_rotary_factor=0.25, mrope_section=[1, 1, 0], mrope_interleaved=True),
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,  # whole vectors: torch computes the rest of one by other operations
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
# Short memories are of no use to a test of states, so that `randomise` lengthens those of Mamba layers.
MAMBA2: dict[str, Any] = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_expand": 4,
}
GRANITE: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.5,
    "attention_bias": True,
}
LATENT: dict[str, Any] = {
    "intermediate_size": 64,  # whole groups of every format
    "num_key_value_heads": 4,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
SHARED_EXPERT = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}

GEMMA4: dict[str, Any] = {
    "head_dim": 16,
    "global_head_dim": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": WINDOW,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 50000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
    },
    "final_logit_softcapping": 3.0,
    "hidden_size_per_layer_input": 0,
    "tie_word_embeddings": True,
}
KEYS_AS_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}

# name -> (model_type, changes of SHARED)
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear-tied": ("llama", {**rope("linear", factor=4.0), "tie_word_embeddings": True}),
    "llama-llama3": ("llama", LLAMA3),
    "llama-yarn": ("llama", YARN),
    "llama-dynamic": ("llama", rope("dynamic", factor=4.0)),
    "mistral": ("mistral", {"sliding_window": WINDOW, "head_dim": 12}),
    "ministral3": ("ministral3", {"head_dim": 16, **MINISTRAL}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "qwen3": ("qwen3", {"head_dim": 16, "attention_bias": True}),
    "gemma2": ("gemma2", {**GEMMA, "attn_logit_softcapping": 2.0, "tie_word_embeddings": True}),
    "gemma3": (
        "gemma3_text",
        {
            **GEMMA,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
            "tie_word_embeddings": True,
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "head_dim": 8,
            "mamba_num_heads": 32,
            "mamba_head_dim": 4,
            "n_groups": 2,
            "ssm_state_size": 8,
            "n_routed_experts": 6,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 64,
            "routed_scaling_factor": 1.5,
        },
    ),
    "nemotron_h-mlps": (
        "nemotron_h",
        {
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
            "head_dim": 8,
            "mamba_num_heads": 32,
            "mamba_head_dim": 4,
            "n_groups": 1,
            "ssm_state_size": 8,
            "mlp_bias": True,
        },
    ),
    "gemma4": ("gemma4_text", GEMMA4 | KEYS_AS_VALUES),
    "gemma4-small": (  # as E2B and E4B
        "gemma4_text",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": VOCAB,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4-moe": (
        "gemma4_text",
        {
            **GEMMA4,
            **KEYS_AS_VALUES,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,  # whole vectors, as above
        },
    ),
    "gemma4_unified": ("gemma4_unified_text", GEMMA4 | KEYS_AS_VALUES),
    "glm4_moe_lite": ("glm4_moe_lite", {**LATENT, "attention_bias": True}),
    "glm4_moe_lite-yarn": (
        "glm4_moe_lite",
        {
            **LATENT,
            **rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.8),
            "q_lora_rank": None,
            "rope_interleave": False,
            "n_shared_experts": 2,
            "mlp_layer_types": ["sparse", "dense", "sparse", "dense"],
        },
    ),
    "phi3": ("phi3", {"sliding_window": WINDOW}),
    "phi3-longrope": ("phi3", LONGROPE),
    "granite": ("granite", GRANITE),
    "granitehybrid": (
        "granitemoehybrid",
        {**GRANITE, **MAMBA2, "num_local_experts": 0, "shared_intermediate_size": 48},
    ),
    "granitehybrid-attention": (
        "granitemoehybrid",
        {
            **MAMBA2,
            "layer_types": ["full_attention"] * LAYERS,
            "position_embedding_type": "rope",
            "num_local_experts": 0,
            "shared_intermediate_size": 48,
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        {
            **EXPERTS,
            **rope("yarn", factor=4.0, original_max_position_embeddings=64, truncate=False),
            "head_dim": 16,
            "intermediate_size": 32,
            "sliding_window": WINDOW,
            "swiglu_limit": 0.8,
        },
    ),
    "granitehybrid-experts": (
        "granitemoehybrid",
        {**MAMBA2, **EXPERTS, "mamba_n_groups": 1, "shared_intermediate_size": 64},
    ),
    "lfm2": (
        "lfm2",
        {
            "layer_types": ["conv", "conv", "full_attention", "conv"],
            "intermediate_size": 72,
            "block_multiple_of": 16,
            "conv_L_cache": 3,
            "norm_eps": 1e-5,
        },
    ),
    "lfm2_moe": (
        "lfm2_moe",
        {
            "layer_types": ["conv", "conv", "full_attention", "conv"],
            "moe_intermediate_size": 32,
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.5,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_5": ("qwen3_5_text", DELTA_NET),
    "qwen3_5_moe": (
        "qwen3_5_moe_text",
        {**DELTA_NET, "num_experts": 6, "num_experts_per_tok": 2, **SHARED_EXPERT},
    ),
    "qwen3_next": (
        "qwen3_next",
        {
            **DELTA_NET,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            **SHARED_EXPERT,
            "norm_topk_prob": False,
            "mlp_only_layers": [2],
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}),
    "mixtral": ("mixtral", {**EXPERTS, "sliding_window": WINDOW}),
    "qwen3_moe": (
        "qwen3_moe",
        {
            **EXPERTS,
            "head_dim": 16,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
}


def make_tiny(directory: Path, name: str, vocab_size: int = VOCAB, **saving: Any) -> Path:
    """Saves the checkpoint `name` of TINY by transformers' save_pretrained, and returns its directory."""
    model_type, changes = TINY[name]
    settings = SHARED | changes | {"vocab_size": vocab_size}
    if "vocab_size_per_layer_input" in changes:
        settings["vocab_size_per_layer_input"] = vocab_size
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
    randomise(model)
    model.save_pretrained(directory, **saving)
    return directory


def make_multimodal(directory: Path, family: str = "gemma3", **saving: Any) -> Any:
    """Saves a Gemma 3, a Ministral 3 or a Qwen 3.5 with a vision tower, and returns the model."""
    gemma = family == "gemma3"
    model_type, changes = TINY[{"mistral3": "ministral3"}.get(family, family)]
    softcap = {"final_logit_softcapping": None} if gemma else {}
    text = AutoConfig.for_model(model_type, **(SHARED | changes | softcap))
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    torch.manual_seed(0)
    model: Any
    if gemma:
        config = Gemma3Config(text_config=text.to_dict(), vision_config=vision, mm_tokens_per_image=4)
        model = Gemma3ForConditionalGeneration(config)
    elif family == "qwen3_5":
        tower = {
            "hidden_size": 16,
            "depth": 1,
            "num_heads": 2,
            "intermediate_size": 16,
            "out_hidden_size": 32,
        }
        model = Qwen3_5ForConditionalGeneration(
            Qwen3_5Config(text_config=text.to_dict(), vision_config=tower)
        )
    else:
        tower = {**vision, "model_type": "pixtral"}
        config = Mistral3Config(text_config=text.to_dict(), vision_config=tower, spatial_merge_size=2)
        model = Mistral3ForConditionalGeneration(config)
    randomise(model)
    model.save_pretrained(directory, **saving)
    return model.eval()


def randomise(model: torch.nn.Module) -> None:
    """Gives norms and biases, which transformers starts at a constant, values that matter."""
    for path, parameter in model.named_parameters():
        if path.endswith("bias") or "norm" in path:
            parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
        elif path.endswith(("mamba.A_log", "mixer.A_log")):
            parameter.data.uniform_(-4.0, 0.0)
        elif path.endswith(("mamba.D", "mixer.D")):
            parameter.data.normal_()
        elif path.endswith((".gate.weight", ".router.weight", "router.proj.weight")):
            parameter.data.normal_(std=0.5)
        elif path.endswith("sinks"):
            parameter.data.normal_()
        elif path.endswith("scale"):
            parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    for path, buffer in model.named_buffers():
        if path.endswith(("expert_bias", "e_score_correction_bias")):
            buffer.normal_(std=0.1)
        elif path.endswith("layer_scalar"):
            buffer.uniform_(0.5, 1.5)
