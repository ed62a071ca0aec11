"""The bytes that each token of a tokenizer stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"  # for a space, in tokenizers made with SentencePiece


class TokenBytes:
    """The bytes of single tokens, in a text where other tokens precede them.

    A token of a byte-level tokenizer, and a byte token, may be a part of a character.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Read nothing yet from a tokenizer of transformers."""
        self._tokenizer = tokenizer

    def of(self, token: int) -> bytes:
        """Return the bytes of a token; none for an id without a token."""
        if token in self._added:
            return self._added[token].encode()
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if not isinstance(piece, str):
            return b""
        if "ByteLevel" in self._decoders:
            return b"".join(self._level_bytes.get(char) or char.encode() for char in piece)
        byte = _BYTE_TOKEN.fullmatch(piece)
        if byte is not None and self._has_byte_tokens:
            return bytes([int(byte[1], 16)])
        if self._decoders and not self._marks_spaces:
            return str(self._tokenizer.decode([token], clean_up_tokenization_spaces=False)).encode()
        return piece.replace(_SPACE, " ").encode()

    @property
    def added(self) -> frozenset[int]:
        """The ids of the tokens beside the vocabulary, such as special tokens."""
        return frozenset(self._added)

    @property
    def is_exact(self) -> bool:
        """Whether each token stands for the same bytes wherever it is, as in byte-level tokenizers."""
        return bool(self._decoders & {"ByteLevel", "ByteFallback"})

    def is_special(self, token: int) -> bool:
        """Return whether it is a special token, which the text of an answer lacks."""
        return token in self._special

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(map(int, self._tokenizer.all_special_ids))

    @cached_property
    def _added(self) -> dict[int, str]:
        """Tokens beside the vocabulary, such as special tokens, which stand for themselves."""
        return {int(token): str(added) for token, added in self._tokenizer.added_tokens_decoder.items()}

    @cached_property
    def _level_bytes(self) -> dict[str, bytes]:
        from transformers.convert_slow_tokenizer import bytes_to_unicode  # noqa: PLC0415 (not for idle agents)

        return {char: bytes([byte]) for byte, char in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]

    @cached_property
    def _decoders(self) -> frozenset[str]:
        """The kinds of the decoders of a fast tokenizer; none of another."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)
        return frozenset(_kinds(json.loads(decoder.__getstate__()))) if decoder is not None else frozenset()

    @property
    def _has_byte_tokens(self) -> bool:
        return not self._decoders or "ByteFallback" in self._decoders

    @property
    def _marks_spaces(self) -> bool:
        return bool(self._decoders & {"Metaspace", "Replace"})


def _kinds(decoder: dict[str, Any]) -> Iterator[str]:
    yield str(decoder.get("type", ""))
    for part in decoder.get("decoders", ()):
        yield from _kinds(part)
