"""Conversion of text to tokens and of tokens to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.text.json_object import errors_of_file
from flowedge.text.template_renderer import RENDERER
from flowedge.text.tokenizer_bounds import check_growth

UNUSABLE = "no usable tokenizer"
_INCOMPLETE = "\ufffd"  # what a tokenizer decodes half of a UTF-8 character to


def chat_template(tokenizer: Any) -> str:
    """The chat template of a tokenizer, the default one of several; "" without a template.

    Raises:
        CheckpointError: when the tokenizer has templates and none of them is a text that is the default.
    """
    found = getattr(tokenizer, "chat_template", None)
    if isinstance(found, dict):
        found = found.get("default", found)
    if not found:
        return ""
    if not isinstance(found, str):
        raise CheckpointError(
            f"the chat template of {directory_of(tokenizer)} is no text but a {type(found).__name__} "
            "without a default"
        )
    return found


def directory_of(tokenizer: Any) -> str:
    """The directory of a tokenizer, to name in errors."""
    return str(getattr(tokenizer, "name_or_path", "") or "the tokenizer")


def encode_chat(tokenizer: Any, user_message: str) -> list[int]:
    """The token ids of one user message, up to where the answer begins; see `encode_messages`."""
    return encode_messages(tokenizer, [{"role": "user", "content": user_message}])


def encode_messages(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], *, answered: bool = False
) -> list[int]:
    """The token ids of a conversation by the model's chat template.

    Without a chat template, the messages' contents are joined by newlines and encoded as plain text.

    Args:
        messages: the "role" and "content" of each message.
        answered: whether the conversation is complete; otherwise the ids end where the answer begins.

    Raises:
        BadRequestError: when the template refuses the messages, or the result has no tokens.
        CheckpointError: when the template exceeds a limit of time, memory or size.
    """
    return encode_text(tokenizer, render_messages(tokenizer, messages, answered=answered), chat=True)


def render_messages(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    answered: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
    values: Mapping[str, Any] = {},
) -> str:
    """The text of a conversation by the model's chat template; see `encode_messages`.

    Args:
        tools: JSON objects of the tools that the template is to describe.
        values: further values for the template.

    Raises:
        BadRequestError: when the template refuses the messages.
        CheckpointError: when the template exceeds a limit of time, memory or size.
    """
    template, place = chat_template(tokenizer), directory_of(tokenizer)
    if not template:
        return "\n".join(message["content"] for message in messages)
    with errors_of_file(place, UNUSABLE):
        special_tokens = dict(tokenizer.special_tokens_map)
    return RENDERER.render(
        template,
        place,
        messages,
        {**values, **special_tokens},
        add_generation_prompt=not answered,
        tools=tools,
    )


def encode_text(tokenizer: Any, text: str, *, chat: bool = False) -> list[int]:
    """The token ids of a text.

    Args:
        chat: whether `render_messages` has made the text. A text by a chat template has its special tokens
            already.

    Raises:
        BadRequestError: when the text has no tokens.
        CapacityError: when the tokenizer makes a text of it that is too long.
    """
    with errors_of_file(directory_of(tokenizer), UNUSABLE):
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            check_growth(backend, text)
        ids = tokenizer(text, add_special_tokens=not (chat and chat_template(tokenizer)))["input_ids"]
    if not ids:
        raise BadRequestError("the prompt has no tokens")
    return [int(token) for token in ids]


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """The ids of a tokenizer's special tokens, by their texts."""
    added = tokenizer.added_tokens_decoder
    return {token.content: int(number) for number, token in added.items() if token.special}


class StreamDecoder:
    """Turns a stream of tokens into text, piece by piece.

    The pieces joined equal the text of all tokens decoded at once, because text that ends in part of a
    character is held back. The one exception is a run of byte tokens that becomes invalid UTF-8 after a part
    of it was returned.
    """

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._hidden: frozenset[int] = frozenset()
        self._ids: list[int] = []
        # The text of [_window, _emitted) has been returned. It is decoded again with the tokens that follow,
        # because a tokenizer treats the first token of a text differently (a leading space is dropped).
        self._window = 0
        self._emitted = 0

    def show(self, tokens: frozenset[int]) -> None:
        """Have the text of these special tokens returned, and that of no other special token."""
        self._skip_special_tokens = False
        self._hidden = frozenset(special_tokens(self._tokenizer).values()) - tokens

    def push(self, token: int) -> str:
        """Add a token and return the text that it completes: often a word, sometimes nothing."""
        if token in self._hidden:
            return ""
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
