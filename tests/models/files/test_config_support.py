"""Features of a config: windows, lengths, and refusals by name; rotary angles row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from flowedge.core.errors import CheckpointError
from flowedge.models.architecture import Architecture
from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.families.table import family_of
from flowedge.models.files.config_support import check_config, max_positions
from flowedge.models.lm_head import LMHead
from tests.models.conftest import edit_config, edit_tensors
from tests.models.pipeline import Pipeline
from tests.models.tiny_families import LONGROPE, TINY, VOCAB, make_multimodal, make_tiny, rope
from tests.support.breadth import dealt

UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    (
        "llama",
        {"sliding_window": 8},
        "sliding_window is set, which transformers' Llama layers do not apply",
    ),
    ("mistral", {"sliding_window": 0}, "sliding_window is 0, not an integer from 1"),
    ("mistral", {"layer_types": ["full_attention"] * 4}, "layer types full_attention are set"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 4}, "sliding_window is not set"),
    (
        "qwen3",
        {"layer_types": ["chunked_attention"] * 4},
        "layer types chunked_attention are not supported",
    ),
    ("gemma2", {"use_bidirectional_attention": True}, "bidirectional attention"),
    ("gemma3", {"use_bidirectional_attention": True}, "bidirectional attention"),
    ("gemma3", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping is set"),
    (
        "gemma3",
        {"rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1e4}}},
        "RoPE scaling 'proportional' is not supported",
    ),
    ("llama", {"num_key_value_heads": 3}, "4 attention heads cannot share 3 KV heads"),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers is 0, not an integer from 1 to 4096"),
    (
        "llama",
        {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}},
        "RoPE scaling 'proportional' is not supported; supported types: default, dynamic",
    ),
    (
        "llama",
        {"model_type": "olmo2"},
        "'olmo2' is not supported; supported types: gemma2, gemma3, .*llama, ",
    ),
    ("granitehybrid", {"mamba_proj_bias": True}, "mamba_proj_bias is set"),
    ("granitehybrid", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; Mamba layers"),
    ("granitehybrid", {"time_step_limit": [0.0, 0.1]}, r"time_step_limit is \[0.0, 0.1\]; steps of Mamba"),
    ("granitehybrid", {"mamba_n_groups": 3}, "32 heads of values cannot share 3 heads of keys"),
    ("granitehybrid", {"mamba_d_state": 0}, "mamba_d_state is 0, not an integer from 1"),
    ("granitehybrid", {"position_embedding_type": "alibi"}, "'alibi'; supported: nope, rope"),
    ("granitehybrid", {"layer_types": ["conv"] * 4}, "layer types conv are set"),
    ("lfm2", {"layer_types": ["linear_attention"] * 4}, "layer types linear_attention are set"),
    ("nemotron_h", {"layers_block_type": ["mlp"] * 5000}, "there are 5000 layers; at most 4096"),
    (
        "nemotron_h",
        {"layers_block_type": ["moe", "sliding_attention"]},
        "contains invalid types: {'sliding_attention'}",
    ),
    ("nemotron_h", {"use_bias": True}, "use_bias is set"),
    ("nemotron_h", {"mamba_hidden_act": "gelu"}, "mamba_hidden_act is 'gelu'; Mamba layers"),
    ("nemotron_h", {"n_group": 2}, "n_group is 2; experts in groups are not supported"),
    ("nemotron_h", {"moe_latent_size": 16}, "moe_latent_size is 16; experts of a latent size"),
    ("nemotron_h", {"sliding_window": 8}, "sliding_window is set"),
    ("mixtral", {"num_local_experts": 0}, "num_experts_per_tok is 2, and there are 0 experts"),
    ("mixtral", {"num_experts_per_tok": 0}, "num_experts_per_tok is 0, and there are 6 experts"),
    ("glm4_moe_lite", {"n_group": 2}, "n_group is 2; experts in groups are not supported"),
    ("glm4_moe_lite", {"num_key_value_heads": 2}, "is 2; in latent attention each of the 4 heads has keys"),
    ("glm4_moe_lite", {"qk_rope_head_dim": 7, "head_dim": 7}, "RoPE requires an even rotary dimension"),
    ("glm4_moe_lite", {"kv_lora_rank": 0}, "kv_lora_rank is 0, not an integer from 1"),
    ("glm4_moe_lite", {"topk_method": "greedy"}, "topk_method is 'greedy'; supported: noaux_tc"),
    ("glm4_moe_lite", {"scoring_func": "softmax"}, "scoring_func is 'softmax'; supported: sigmoid"),
    ("glm4_moe_lite", {"mlp_layer_types": ["sparse"]}, "mlp_layer_types has 1 entries for 4 layers"),
    ("glm4_moe_lite", {"mlp_layer_types": ["mlp"] * 4}, "mlp_layer_types has mlp; supported: dense, sparse"),
    ("glm4_moe_lite", {"first_k_dense_replace": 2}, "first_k_dense_replace is 2, but the layers of mlp_la"),
    (
        "glm4_moe_lite",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        "partial_rotary_factor is 0.5; qk_rope_head_dim says what rotates",
    ),
    ("gemma3", {"model_type": "gemma3"}, "has no text_config"),
    ("gemma4", {"use_bidirectional_attention": "all"}, "bidirectional attention"),
    ("gemma4", {"num_kv_shared_layers": 3}, "num_kv_shared_layers is 3, and before the last 3 of 4 layers"),
    ("gemma4", {"per_layer_config": {"1": {"head_dim": 48}}}, "heads of keys differ between layers of one"),
    (
        "gemma4",
        {"per_layer_config": {"1": {"intermediate_size": 9}}},
        "per_layer_config sets intermediate_size, which is not supported",
    ),
    ("gemma4", {"per_layer_config": {"x": {}}}, "per_layer_config.x is {}, not an object at the index"),
    ("gemma4-small", {"vocab_size_per_layer_input": 100}, "is 100, fewer than the 128 tokens of vocab_size"),
    ("gemma4-moe", {"num_experts": None}, "enable_moe_block is set and num_experts is not"),
    ("gemma4-moe", {"top_k_experts": 7}, "top_k_experts is 7, and there are 6 experts"),
    ("gemma4_unified", {"hidden_activation": "relu"}, "the activation 'relu' is not supported"),
    (
        "gemma3",
        {"model_type": "mistral3", "text_config": {"model_type": "mistral"}},
        "a decoder of type 'mistral' in a mistral3; only 'ministral3' is known",
    ),
]


def test_what_is_not_supported_is_refused_by_name(tmp_path: Path) -> None:
    for name, changes, message in UNSUPPORTED:
        edit_config(make_tiny(tmp_path, name), **changes)
        with pytest.raises(CheckpointError, match=message):
            Checkpoint.open(str(tmp_path))


def test_a_cap_that_a_multimodal_model_does_not_apply_is_refused(tmp_path: Path) -> None:
    make_multimodal(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["final_logit_softcapping"] = 30.0
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="final_logit_softcapping is set"):
        Checkpoint.open(str(tmp_path))


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.q_proj.bias", "lm_head.bias"])
def test_a_bias_that_nobody_would_read_is_refused(tmp_path: Path, name: str) -> None:
    directory = make_tiny(tmp_path, "qwen3_moe")
    edit_tensors(directory, {name: torch.zeros(64)})
    checkpoint = Checkpoint.open(str(directory))
    assert name in checkpoint.names
    with pytest.raises(CheckpointError, match=f"tensor {name} is a bias"):
        LMHead.load(checkpoint) if name == "lm_head.bias" else LayerBlock.load(checkpoint, 1, 2)


DYNAMIC = {**rope("dynamic", factor=4.0), "max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("model_type", "kind"),
    dealt(
        [("llama", "dynamic"), ("llama", "longrope"), ("phi3", "longrope")], lambda case: case[0] == "llama"
    ),
)
def test_length_dependent_scalings_are_chosen_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, kind: str
) -> None:
    """Whatever shares its segment, a row has the angles that decoding one token at a time gives it."""
    monkeypatch.setitem(TINY, "scaled", (model_type, DYNAMIC if kind == "dynamic" else LONGROPE))
    checkpoint = Checkpoint.open(str(make_tiny(tmp_path, "scaled")))
    assert max_positions(checkpoint.config) == 64
    model = ReferenceModel.load(checkpoint).model
    text = np.random.default_rng(1).integers(3, VOCAB, 80).tolist()
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        rows = [
            model(torch.tensor([[token]]), past_key_values=cache, use_cache=True).logits[0] for token in text
        ]
    expected = torch.cat(rows)
    pipeline = Pipeline(checkpoint, 2)
    got = torch.cat([pipeline.commit(text[a:b]) for a, b in [(0, 50), (50, 70), (70, 71), (71, 80)]])
    torch.testing.assert_close(got, expected, atol=3e-5, rtol=1e-4)
    whole = ReferenceModel.load(checkpoint).model
    with torch.inference_mode():
        at_once = whole(torch.tensor([text])).logits[0]
    assert (at_once - expected).abs().max() > 1e-3, "the scaling does not depend on the length here"


GEMMA4_31B: dict[str, Any] = {
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "attention_k_eq_v": True,
    "hidden_size": 5376,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 1024,
    "max_position_embeddings": 262144,
    "use_bidirectional_attention": "vision",
}
# The keys of published config.json files that matter here, as they were written for earlier transformers.
PUBLISHED: list[tuple[str, dict[str, Any], set[int | None], int]] = [
    (
        "llama",  # 3.1
        {
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "pretraining_tp": 1,
        },
        {None},
        131072,
    ),
    (
        "llama",
        {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {None},
        4096,
    ),
    ("mistral", {"sliding_window": 4096, "max_position_embeddings": 32768}, {4096}, 32768),
    (
        "qwen2",  # 2.5
        {
            "use_sliding_window": False,
            "sliding_window": 131072,
            "max_window_layers": 70,
            "max_position_embeddings": 32768,
        },
        {None},
        32768,
    ),
    ("gemma2", {"sliding_window": 4096, "cache_implementation": "hybrid"}, {4096, None}, 8192),
    (
        "gemma3_text",  # 3 1B
        {
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "rope_local_base_freq": 10000,
            "rope_theta": 1000000,
            "rope_scaling": None,
            "attn_logit_softcapping": None,
            "max_position_embeddings": 32768,
        },
        {512, None},
        32768,
    ),
    (
        "phi3",  # 3 mini, 128k
        {
            "sliding_window": 262144,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
        },
        {262144},
        4096,
    ),
    (
        "ministral3",  # 3B Instruct
        {
            "sliding_window": None,
            "max_position_embeddings": 262144,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 16384,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        {None},
        16384,
    ),
    (
        "gemma4_text",  # 31B, as it is published, and as transformers saves it
        {
            **GEMMA4_31B,
            "global_head_dim": 512,
            "num_global_key_value_heads": 4,
        },
        {1024, None},
        262144,
    ),
    (
        "gemma4_text",
        {
            **GEMMA4_31B,
            "per_layer_config": {
                str(layer): {"head_dim": 512, "num_key_value_heads": 4} for layer in range(5, 60, 6)
            },
        },
        {1024, None},
        262144,
    ),
    ("mixtral", {"sliding_window": None, "max_position_embeddings": 32768}, {None}, 32768),
    (
        "nemotron_h",  # 3 Nano 30B-A3B
        {
            "hidden_size": 2688,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "num_hidden_layers": 52,
            "head_dim": 128,
            "num_key_value_heads": 2,
            "mamba_num_heads": 64,
            "n_routed_experts": 128,
            "num_experts_per_tok": 6,
            "partial_rotary_factor": 1.0,
            "rope_theta": 10000,
            "time_step_limit": [0.0, float("inf")],
            "max_position_embeddings": 262144,
        },
        {None},
        262144,
    ),
    (
        "glm4_moe_lite",  # GLM-4.7-Flash
        {
            "first_k_dense_replace": 1,
            "hidden_size": 2048,
            "kv_lora_rank": 512,
            "max_position_embeddings": 202752,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 64,
            "num_attention_heads": 20,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 47,
            "num_key_value_heads": 20,
            "num_nextn_predict_layers": 1,
            "partial_rotary_factor": 1.0,
            "q_lora_rank": 768,
            "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "topk_method": "noaux_tc",
            "v_head_dim": 256,
        },
        {None},
        202752,
    ),
    (
        "granitemoehybrid",  # 4.0 H-Micro
        {
            "hidden_size": 2048,
            "layer_types": (["mamba"] * 9 + ["attention"]) * 4,
            "num_hidden_layers": 40,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_n_heads": 64,
            "normalization_function": "rmsnorm",
            "num_experts_per_tok": 0,
            "num_local_experts": 0,
            "position_embedding_type": "nope",
            "rope_scaling": None,
            "rope_theta": 10000,
            "max_position_embeddings": 131072,
        },
        {None},
        131072,
    ),
    ("smollm3", {"use_sliding_window": False, "sliding_window": None, "no_rope_layers": None}, {None}, 32768),
]


def test_published_configs_are_understood() -> None:
    for model_type, published, windows, longest in PUBLISHED:
        family = family_of(model_type)
        config = family.config.from_dict({"model_type": model_type, **published})
        check_config(family, config)
        assert set(Architecture.of(family, config).windows) == windows
        assert max_positions(config) == longest
