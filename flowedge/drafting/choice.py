"""What --drafter says. Imports no torch, so that a command line is checked at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from flowedge.core.errors import BadRequestError

NO_DRAFTER = "none"
NGRAM = "ngram"
RECALL = "recall"
BUNDLED = "bundled"
BUNDLED_SMALL = "bundled-small"
BUNDLED_EAGLE3 = "bundled-eagle3"
BUNDLED_FOLDERS = {BUNDLED: "eagle", BUNDLED_SMALL: "small", BUNDLED_EAGLE3: "eagle3"}  # of flowedge/bundled
MOST_PIECES = 8  # of a choice at its "+"; the ways to join them again double with each
WORDS = (NO_DRAFTER, NGRAM, RECALL, *BUNDLED_FOLDERS)


def parse_drafter(text: str) -> tuple[str, ...]:
    """The sources that a drafter is made of: none, one, or several that were joined by a "+".

    A source is "ngram", "recall", one of BUNDLED_FOLDERS, a directory or a hub id. A directory may have a "+"
    in its name.
    BadRequestError when the text cannot be taken apart, or joins what cannot be joined.
    """
    if text in ("", NO_DRAFTER):
        return ()
    if Path(text).expanduser().is_dir():
        return (text,)
    pieces = text.split("+")
    if len(pieces) > MOST_PIECES:
        raise BadRequestError(f"drafter {text[:60]}: at most {MOST_PIECES - 1} + can be taken apart")
    ways = [way for way in _groupings(pieces) if all("+" not in each or _is_there(each) for each in way)]
    fewest = min(map(len, ways))
    ways = [way for way in ways if len(way) == fewest]
    if len(ways) > 1:
        raise BadRequestError(f"drafter {text}: directories of these names leave open what is joined to what")
    sources = ways[0]
    if "" in sources:
        raise BadRequestError(f"drafter {text}: there is nothing on one side of a +")
    if len(sources) > 1 and NO_DRAFTER in sources:
        raise BadRequestError(f"drafter {text}: {NO_DRAFTER} cannot be joined with another")
    if len(set(sources)) < len(sources):
        raise BadRequestError(f"drafter {text}: a drafter is not joined with itself")
    return sources


def _groupings(pieces: Sequence[str]) -> list[tuple[str, ...]]:
    """Every way to join neighbours of the pieces by a "+" again."""
    if len(pieces) == 1:
        return [(pieces[0],)]
    rest = _groupings(pieces[1:])
    return [(pieces[0], *way) for way in rest] + [(f"{pieces[0]}+{way[0]}", *way[1:]) for way in rest]


def map_sources(text: str, change: Callable[[str], str]) -> str:
    """The same choice with each source changed. BadRequestError as in parse_drafter."""
    return "+".join(map(change, parse_drafter(text))) or text


def _is_there(source: str) -> bool:
    return source in WORDS or Path(source).expanduser().is_dir()
