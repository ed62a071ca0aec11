"""The tokens of a GGUF file that end an answer."""

from __future__ import annotations

from flowedge.models.checkpoint.gguf.metadata import Metadata

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
        "<end_of_utterance>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<EOT>",
    }
)


def end_tokens(metadata: Metadata, vocab_size: int) -> list[int]:
    """The ids of the tokens that end an answer; those of the file's keys come first.

    Raises:
        CheckpointError: when a key names no token.
    """
    found = [metadata.token(f"tokenizer.ggml.{key}", vocab_size) for key in _KEYS]
    tokens = metadata.values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list):
        found += [index for index, text in enumerate(tokens[:vocab_size]) if text in _TEXTS]
    return [token for token in dict.fromkeys(found) if token is not None]
