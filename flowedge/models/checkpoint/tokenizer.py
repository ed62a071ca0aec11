"""Text to tokens and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import AutoTokenizer, GenerationConfig

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.models.checkpoint.checkpoint import Checkpoint

_INCOMPLETE = "\ufffd"  # what a tokenizer decodes half of a UTF-8 character to


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The checkpoint's transformers tokenizer; CheckpointError when it has none that can be read."""
    try:
        return AutoTokenizer.from_pretrained(
            checkpoint.directory, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise CheckpointError(f"{checkpoint.directory}: no usable tokenizer: {error}") from error


def encode_chat(tokenizer: Any, user_message: str) -> list[int]:
    """The token ids of one user message, ready for the answer: see `encode_messages`."""
    return encode_messages(tokenizer, [{"role": "user", "content": user_message}])


def encode_messages(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """The token ids of a conversation, up to where the assistant is to answer.

    messages: "role" and "content" of each. With no chat template in the checkpoint, their contents joined by
    newlines, as plain text to go on from. BadRequestError for messages that the template refuses, or no
    tokens.
    """
    if getattr(tokenizer, "chat_template", None):
        try:
            ids = tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        except Exception as error:
            raise BadRequestError(f"the model's chat template refuses the messages: {error}") from error
    else:
        ids = tokenizer.encode("\n".join(message["content"] for message in messages))
    if not ids:
        raise BadRequestError("the prompt has no tokens")
    return [int(token) for token in ids]


def eos_token_ids(checkpoint: Checkpoint, tokenizer: Any | None = None) -> frozenset[int]:
    """Every token id that ends an answer: of the generation config, the model's config and the tokenizer."""
    found = [checkpoint.config.eos_token_id, getattr(tokenizer, "eos_token_id", None)]
    if (checkpoint.directory / "generation_config.json").is_file():
        try:
            found.append(
                GenerationConfig.from_pretrained(checkpoint.directory, local_files_only=True).eos_token_id
            )
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{checkpoint.directory}: generation_config.json: {error}") from error
    ids: set[int] = set()
    for entry in found:
        ids.update([] if entry is None else [entry] if isinstance(entry, int) else entry)
    return frozenset(ids)


class StreamDecoder:
    """Turns tokens into text as they come; the pieces join to what decoding all of them at once gives.

    Text is held back while it ends in part of a character. The one exception to the join: a run of byte
    tokens that becomes invalid UTF-8 after part of it was sent; what was sent stays.
    """

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._ids: list[int] = []
        # [_window, _emitted) has been emitted; it is decoded again with what follows, because a
        # tokenizer treats the first token of a text differently (a leading space is dropped).
        self._window = 0
        self._emitted = 0

    def push(self, token: int) -> str:
        """The text that this token completes, often one word, sometimes nothing."""
        self._ids.append(token)
        before = self._decode(self._ids[self._window : self._emitted])
        after = self._decode(self._ids[self._window :])
        if len(after) <= len(before) or after.endswith(_INCOMPLETE):
            return ""
        self._window, self._emitted = self._emitted, len(self._ids)
        return after[len(before) :]

    def flush(self) -> str:
        """The text still held back; characters that never became complete are replaced by U+FFFD."""
        before = self._decode(self._ids[self._window : self._emitted])
        after = self._decode(self._ids[self._window :])
        self._window = self._emitted = len(self._ids)
        return after[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=self._skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text
