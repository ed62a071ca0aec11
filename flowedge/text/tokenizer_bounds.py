"""Bounds on what a tokenizer makes of a text. Its file is untrusted data, and a program of a kind.

A tokenizer is a chain of parts. Nine parts that each replace a letter by ten make 10 GiB of 5,000 letters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from flowedge.core.errors import CapacityError, CheckpointError

# Spaces become three times as long where a tokenizer marks them, and Hangul by NFD.
_TEXT_GROWTH = 3  # of a text by all normalizers, in bytes
_TEXT_SLACK = 1 << 16  # bytes by which a short text may grow beyond that
_PART_GROWTH = 40  # of any text by one normalizer; 33 by SentencePiece's NFKC
_CHAIN_GROWTH = 8  # of any text by all parts that split it into words, or that join tokens
_MAX_SPECIAL = 64  # tokens that a template puts around one text
_MAX_TOKEN = 1024  # characters; published vocabularies have some of 256
_MAX_WORD = 1000  # characters of a word that WordPiece splits in a time that grows with their square
# How many times as many bytes a part makes of a text, at most; other kinds make no text longer.
_GROWTHS = {
    "NFC": 3.0,
    "NFD": 3.0,
    "NFKC": 11.0,
    "NFKD": 11.0,
    "Lowercase": 1.5,
    "BertNormalizer": 9.0,
    "Precompiled": 33.0,
    "ByteLevel": 2.0,
    "Metaspace": 4.0,
    "WordPiece": 2.0,
}
_INNER = ("normalizers", "pretokenizers", "decoders", "processors")


def check_tokenizer(backend: Any, place: str) -> None:
    """Check that no text grows without bounds in a tokenizer, and that no token or list of tokens does.

    Args:
        backend: the tokenizer, of the `tokenizers` library.
        place: its directory, to name in errors.

    Raises:
        CheckpointError: when a part exceeds a bound.
    """
    for part in _parts(backend.normalizer):
        if _growth(part) > _PART_GROWTH:
            raise _boundless(
                place, f"its normalizer {part['type']} makes a text {_growth(part):.0f} times as long"
            )
    for name in ("pre_tokenizer", "decoder"):
        growth = math.prod(map(_growth, _parts(getattr(backend, name))))
        if growth > _CHAIN_GROWTH:
            raise _boundless(place, f"its {name} makes a text {growth:.3g} times as long")
    for part in _parts(backend.post_processor):
        special = part.get("special_tokens")
        added = len(part.get("single", ()))
        if isinstance(special, dict):
            added += sum(len(each["ids"]) for each in special.values())
        if added > _MAX_SPECIAL:
            raise _boundless(place, f"it puts {added} tokens around a text")
    if getattr(backend.model, "max_input_chars_per_word", 0) > _MAX_WORD:
        raise _boundless(place, f"its max_input_chars_per_word is more than {_MAX_WORD}")
    pieces = (backend.id_to_token(number) for number in range(backend.get_vocab_size()))
    longest = max((len(piece) for piece in pieces if piece is not None), default=0)
    if longest > _MAX_TOKEN:
        raise _boundless(place, f"it has a token of {longest} characters")


def check_growth(backend: Any, text: str) -> None:
    """Check that a tokenizer's normalizers make no much longer text of a text, one by one.

    Raises:
        CapacityError: when they do.
    """
    normalizer = backend.normalizer
    if math.prod(map(_growth, _parts(normalizer))) <= _TEXT_GROWTH:
        return
    size = len(text.encode())
    most = _TEXT_GROWTH * size + _TEXT_SLACK
    for part in _in_order(normalizer):
        grown = _replaced_size(_stated(part), text)
        if grown is None or grown <= most:
            text = part.normalize_str(text)
            grown = len(text.encode())
        if grown > most:
            raise CapacityError(
                f"the model's tokenizer makes {grown} bytes of a prompt of {size}, and would take too much "
                "memory; shorten the prompt"
            )


def _in_order(normalizer: Any) -> Iterator[Any]:
    if _stated(normalizer)["type"] != "Sequence":
        yield normalizer
        return
    for part in normalizer:
        yield from _in_order(part)


def _replaced_size(part: dict[str, Any], text: str) -> int | None:
    """Return the bytes of a text after a replacement of one text by another; None for other parts."""
    pattern = part.get("pattern")
    if part["type"] != "Replace" or not isinstance(pattern, dict) or not pattern.get("String"):
        return None
    old, new = pattern["String"], part["content"]
    return len(text.encode()) + text.count(old) * (len(new.encode()) - len(old.encode()))


def _growth(part: dict[str, Any]) -> float:
    """Return how many times as many bytes a part makes of a text, at most."""
    if part["type"] != "Replace":
        return _GROWTHS.get(part["type"], 1.0)
    new, pattern = len(part["content"].encode()), part["pattern"]
    old = pattern.get("String")
    # A regular expression may match between all letters.
    return max(1.0, new / len(old.encode())) if old else new + 1.0


def _parts(component: Any) -> Iterator[dict[str, Any]]:
    """Yield what is stated of the parts of a component, of those in sequences as well."""
    waiting = [_stated(component)] if component is not None else []
    while waiting:
        part = waiting.pop()
        inner = next((part[name] for name in _INNER if name in part), None)
        if inner is None:
            yield part
        else:
            waiting += inner


def _stated(component: Any) -> dict[str, Any]:
    stated: dict[str, Any] = json.loads(component.__getstate__())
    return stated


def _boundless(place: str, problem: str) -> CheckpointError:
    return CheckpointError(f"the tokenizer of {place} cannot be used: {problem}")
