"""Metadata that are missing or impossible are refused by their key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from flowedge.core.errors import CheckpointError
from flowedge.models.gguf_families.config import make_config, make_generation_config
from flowedge.models.gguf_families.metadata import Metadata
from flowedge.models.gguf_families.model_facts import ModelFacts

LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 100,
    "llama.embedding_length": 32,
    "llama.block_count": 2,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.eos_token_id": 3,
}
SHAPES = {"token_embd.weight": (50, 32)}


def facts(values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> ModelFacts:
    return ModelFacts(Metadata(dict(values), "llama"), shapes, lambda _: None)


def test_a_config() -> None:
    config = make_config(facts(LLAMA))
    assert (config["model_type"], config["head_dim"], config["vocab_size"]) == ("llama", 8, 50)
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert config["tie_word_embeddings"] is True and config["attention_bias"] is False
    assert make_config(facts(LLAMA | {"llama.attention.sliding_window": 7}))["model_type"] == "mistral"


@pytest.mark.parametrize("key", ["llama.rope.scaling.factor", "llama.rope.scale_linear"])
def test_a_linear_scaling_without_its_type(key: str) -> None:
    """The first converters stored the factor alone."""
    rope = make_config(facts(LLAMA | {key: 4.0}))["rope_parameters"]
    assert rope == {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    assert make_config(facts(LLAMA | {key: 1.0}))["rope_parameters"]["rope_type"] == "default"


def test_the_window_of_the_first_phi3_files() -> None:
    values = {key.replace("llama.", "phi3."): value for key, value in LLAMA.items()}
    values |= {"general.architecture": "phi3", "phi3.context_length": 4096}

    def window(**more: int) -> Any:
        keys = values | {f"phi3.{key}": value for key, value in more.items()}
        return make_config(ModelFacts(Metadata(keys, "phi3"), SHAPES, lambda _: None))["sliding_window"]

    assert window() == 2047
    assert window(**{"attention.sliding_window": 0}) is None
    assert window(**{"attention.sliding_window": 64}) == 64
    assert window(context_length=16384) is None


@pytest.mark.parametrize("pattern", [3, [True, True, False, True]])
def test_windows_of_gemma3(pattern: Any) -> None:
    values = {key.replace("llama.", "gemma3."): value for key, value in LLAMA.items()}
    values |= {"gemma3.block_count": 4, "gemma3.attention.sliding_window": 8}
    values["gemma3.attention.sliding_window_pattern"] = pattern
    kinds = make_config(ModelFacts(Metadata(values, "gemma3"), SHAPES, lambda _: None))["layer_types"]
    assert kinds == [f"{kind}_attention" for kind in ("sliding", "sliding", "full", "sliding")]
    values["gemma3.attention.sliding_window_pattern"] = [1, 2]
    with pytest.raises(CheckpointError, match="unless it is a count or a bool for each layer"):
        make_config(ModelFacts(Metadata(values, "gemma3"), SHAPES, lambda _: None))


def test_latent_attention_with_other_routers_or_angles() -> None:
    values = {key.replace("llama.", "deepseek2."): value for key, value in LLAMA.items()}
    sizes = {"attention.kv_lora_rank": 16, "attention.key_length_mla": 12, "attention.value_length_mla": 8}
    experts = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 32}
    own = {"rope.dimension_count": 4, "leading_dense_block_count": 1, "expert_gating_func": 2}
    values |= {f"deepseek2.{key}": value for key, value in (sizes | experts | own).items()}

    def config(**more: Any) -> Any:
        keys = values | {f"deepseek2.{key}": value for key, value in more.items()}
        return make_config(ModelFacts(Metadata(keys, "deepseek2"), SHAPES, lambda _: None))

    found = config()
    assert found["mlp_layer_types"] == ["dense", "sparse"]
    assert (found["q_lora_rank"], found["qk_nope_head_dim"], found["num_key_value_heads"]) == (None, 8, 4)
    for more, message in (
        ({"expert_gating_func": 1}, "expert_gating_func is 1, not 2"),
        ({"expert_group_count": 8}, "expert_group_count is 8, which FlowEdge's layers"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, "RoPE scaling 'linear' is not"),
        ({"rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier is 0.1, which FlowEdge's layers"),
        ({"attention.key_length_mla": 4}, "key_length_mla is 4, not an integer from 5"),
        ({"leading_dense_block_count": 3}, "leading_dense_block_count is 3, not an integer from 0 to 2"),
    ):
        with pytest.raises(CheckpointError, match=message):
            config(**more)


def test_special_tokens_that_are_no_tokens() -> None:
    """Files of fine-tuned models may name a padding token behind the end of the vocabulary."""
    config = make_config(facts(LLAMA | {"tokenizer.ggml.padding_token_id": 50}))
    assert config["pad_token_id"] is None and config["eos_token_id"] == 3


def test_end_tokens_of_a_turn() -> None:
    more = {"tokenizer.ggml.eot_token_id": 4, "tokenizer.ggml.eom_token_id": 3}
    assert make_generation_config(facts(LLAMA | more))["eos_token_id"] == [3, 4]


def test_end_tokens_by_their_texts() -> None:
    """Converters store the end of the text, and not the end of a turn of Gemma and Phi 3."""
    tokens = ["<pad>", "<eos>", "<bos>", "a", "<end_of_turn>", "<|end|>", "</s>"]
    ends = {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.tokens": tokens}
    assert make_generation_config(facts(LLAMA | ends))["eos_token_id"] == [1, 4, 5]
    few = {"token_embd.weight": (5, 32)}
    assert make_generation_config(facts(LLAMA | ends, few))["eos_token_id"] == [1, 4]


def test_a_part_of_an_answer_of_gpt_oss_does_not_end_it() -> None:
    tokens = ["<pad>", "<|return|>", "a", "<|call|>", "b", "<|end|>", "c"]
    ends = {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.tokens": tokens}
    assert make_generation_config(facts(LLAMA | ends))["eos_token_id"] == [1, 3]


IMPOSSIBLE: list[tuple[str, Any, str]] = [
    ("llama.block_count", None, r"the metadata have no llama\.block_count"),
    ("llama.block_count", 0, r"llama\.block_count is 0, not an integer from 1 to 4096"),
    ("llama.block_count", 100_000, "from 1 to 4096"),
    ("llama.attention.head_count_kv", [2, 2], r"is \[2, 2\], not an integer"),
    ("llama.embedding_length", "32", "is 32, not an integer"),
    ("llama.use_parallel_residual", True, "use_parallel_residual is True, which FlowEdge's layers"),
    ("llama.attention.layer_norm_rms_epsilon", float("nan"), "is nan, not a finite number"),
    ("llama.attention.layer_norm_rms_epsilon", True, "is True, not a number"),
    ("llama.rope.scaling.type", "wave", "RoPE scaling 'wave' is not supported"),
    ("llama.rope.scaling.factor", "two", "scaling.factor is two, not a number"),
    ("llama.rope.scaling.type", "linear", r"have no llama\.rope\.scaling\.factor"),
    ("tokenizer.ggml.eos_token_id", 50, "is 50, not a token id below 50"),
]


def test_impossible_metadata() -> None:
    for key, value, message in IMPOSSIBLE:
        values = {k: v for k, v in (LLAMA | {key: value}).items() if v is not None}
        with pytest.raises(CheckpointError, match=message):
            make_config(facts(values))


def test_partial_rotation() -> None:
    sizes = {"llama.attention.key_length": 8, "llama.rope.dimension_count": 4}
    with pytest.raises(CheckpointError, match=r"rope\.dimension_count is 4 of the 8 values of a head"):
        make_config(facts(LLAMA | sizes))


def test_no_embedding() -> None:
    with pytest.raises(CheckpointError, match=r"token_embd\.weight is missing"):
        make_config(facts(LLAMA, {}))
