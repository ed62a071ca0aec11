"""The config and the generation config of a GGUF model, as a Hugging Face checkpoint would have them."""

from __future__ import annotations

from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.gguf_families.architectures import ARCHITECTURE_KEY, OUTPUT
from flowedge.models.gguf_families.expert_configs import WITH_EXPERTS
from flowedge.models.gguf_families.gemma_configs import GEMMA
from flowedge.models.gguf_families.llama_configs import LLAMA_LIKE
from flowedge.models.gguf_families.metadata import Metadata
from flowedge.models.gguf_families.model_facts import ModelFacts
from flowedge.models.gguf_families.recurrent_configs import RECURRENT
from flowedge.models.gguf_families.refusals import check_computation

# What a config has beside the values that all families have, by the architecture.
_OF_FAMILIES = LLAMA_LIKE | GEMMA | RECURRENT | WITH_EXPERTS
_EPSILONS = {
    "lfm2": "norm_eps",
    "lfm2moe": "norm_eps",
    "nemotron_h": "layer_norm_epsilon",
    "nemotron_h_moe": "layer_norm_epsilon",
}
# Nemotron-H does not rotate at all.
_PARTLY_ROTATED = frozenset({"deepseek2", "phi3", "qwen35", "qwen35moe", "nemotron_h", "nemotron_h_moe"})
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# llama.cpp ends an answer at a token of such a text, and so do the generation configs of the models that have
# the token. Converters store one end token only: that of the text, not that of a turn of the conversation.
_END_TEXTS = frozenset(
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
    return common | _OF_FAMILIES[metadata.architecture](facts)


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


def end_tokens(metadata: Metadata, vocab_size: int) -> list[int]:
    """The ids of the tokens that end an answer; those of the file's keys come first.

    Raises:
        CheckpointError: when a key names no token.
    """
    found = [metadata.token(f"tokenizer.ggml.{key}", vocab_size) for key in _END_KEYS]
    tokens = metadata.values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list):
        texts = _HARMONY_TEXTS if _HARMONY_TEXTS.issubset(tokens) else _END_TEXTS
        found += [index for index, text in enumerate(tokens[:vocab_size]) if text in texts]
    return [token for token in dict.fromkeys(found) if token is not None]


def _check_rotation(facts: ModelFacts) -> None:
    """Check that whole heads are rotated, as the layers of most architectures do."""
    metadata, size = facts.metadata, facts.head_size
    rotated = metadata.count(".rope.dimension_count", size)
    if metadata.architecture not in _PARTLY_ROTATED and rotated != size:
        raise CheckpointError(
            f"{metadata.architecture}.rope.dimension_count is {rotated} of the {size} values of a head; "
            "partial rotation is not supported in this architecture"
        )
