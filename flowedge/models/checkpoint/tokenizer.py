"""Conversion of text to tokens and of tokens to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import AutoTokenizer, GenerationConfig

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.models.checkpoint.checkpoint import Checkpoint

_INCOMPLETE = "\ufffd"  # what a tokenizer decodes half of a UTF-8 character to


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    directory = checkpoint.tokenizer_directory()
    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise CheckpointError(f"{directory}: no usable tokenizer: {error}") from error


def encode_chat(tokenizer: Any, user_message: str) -> list[int]:
    """The token ids of one user message, up to where the answer begins; see `encode_messages`."""
    return encode_messages(tokenizer, [{"role": "user", "content": user_message}])


def encode_messages(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], *, answered: bool = False
) -> list[int]:
    """The token ids of a conversation by the model's chat template.

    Without a chat template, the messages' contents are joined by newlines and encoded as plain text.

    Args:
        messages: the "role" and "content" of each message.
        answered: whether the conversation is complete; otherwise the ids end where the answer begins.

    Raises:
        BadRequestError: when the template refuses the messages, or the result has no tokens.
    """
    if getattr(tokenizer, "chat_template", None):
        try:
            ids = tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                add_generation_prompt=not answered,
                tokenize=True,
                return_dict=False,
            )
        # A template is the checkpoint's own program; its errors are of any type.
        except Exception as error:
            raise BadRequestError(f"the model's chat template refuses the messages: {error}") from error
    else:
        ids = tokenizer.encode("\n".join(message["content"] for message in messages))
    if not ids:
        raise BadRequestError("the prompt has no tokens")
    return [int(token) for token in ids]


def eos_token_ids(checkpoint: Checkpoint, tokenizer: Any | None = None) -> frozenset[int]:
    """The token ids that end an answer, from the generation config, the model's config and the tokenizer."""
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
    """Turns a stream of tokens into text, piece by piece.

    The pieces joined equal the text of all tokens decoded at once, because text that ends in part of a
    character is held back. The one exception is a run of byte tokens that becomes invalid UTF-8 after a part
    of it was returned.
    """

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._ids: list[int] = []
        # The text of [_window, _emitted) has been returned. It is decoded again with the tokens that follow,
        # because a tokenizer treats the first token of a text differently (a leading space is dropped).
        self._window = 0
        self._emitted = 0

    def push(self, token: int) -> str:
        """Add a token and return the text that it completes: often a word, sometimes nothing."""
        self._ids.append(token)
        added = self._not_emitted()
        if not added or added.endswith(_INCOMPLETE):
            return ""
        self._window, self._emitted = self._emitted, len(self._ids)
        return added

    def flush(self) -> str:
        """Return the text still held back, with U+FFFD in place of incomplete characters."""
        added = self._not_emitted()
        self._window = self._emitted = len(self._ids)
        return added

    def _not_emitted(self) -> str:
        before = self._decode(self._ids[self._window : self._emitted])
        return self._decode(self._ids[self._window :])[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=self._skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text
