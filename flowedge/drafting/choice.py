"""What --drafter says. Imports no torch, so that a command line is checked at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flowedge.errors import BadRequestError

NO_DRAFTER = "none"
NGRAM = "ngram"
BUNDLED = "bundled"
BUNDLED_SMALL = "bundled-small"
BUNDLED_EAGLE3 = "bundled-eagle3"
BUNDLED_FOLDERS = {BUNDLED: "eagle", BUNDLED_SMALL: "small", BUNDLED_EAGLE3: "eagle3"}  # of flowedge/bundled
WORDS = (NO_DRAFTER, NGRAM, *BUNDLED_FOLDERS)


def parse_drafter(text: str) -> tuple[str, ...]:
    """The sources that a drafter is made of: none, one, or two that were joined by a "+".

    A source is "ngram", one of BUNDLED_FOLDERS, a directory or a hub id. A directory may have a "+" in its
    name.
    BadRequestError when the text cannot be taken apart, or joins what cannot be joined.
    """
    if text in ("", NO_DRAFTER):
        return ()
    if Path(text).expanduser().is_dir():
        return (text,)
    pairs = [(text[:i], text[i + 1 :]) for i, letter in enumerate(text) if letter == "+"]
    if not pairs:
        return (text,)
    if len(pairs) > 1:  # then some belong to names of directories
        pairs = [pair for pair in pairs if all(_is_there(source) for source in pair)]
    if len(pairs) != 1:
        raise BadRequestError(f"drafter {text}: at most two can be joined by a +, such as bundled+ngram")
    first, second = pairs[0]
    if not first or not second:
        raise BadRequestError(f"drafter {text}: there is nothing on one side of the +")
    if NO_DRAFTER in (first, second):
        raise BadRequestError(f"drafter {text}: {NO_DRAFTER} cannot be joined with another")
    if first == second:
        raise BadRequestError(f"drafter {text}: a drafter is not joined with itself")
    return first, second


def map_sources(text: str, change: Callable[[str], str]) -> str:
    """The same choice with each source changed. BadRequestError as in parse_drafter."""
    return "+".join(map(change, parse_drafter(text))) or text


def _is_there(source: str) -> bool:
    return source in WORDS or Path(source).expanduser().is_dir()
