"""The names that --drafter, a configuration, a scenario and a role give a drafter by. Imports no torch."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowedge.core.errors import BadRequestError

if TYPE_CHECKING:
    from flowedge.drafting.drafter_kind import DrafterKind
    from flowedge.v1.agent_pb2 import DraftNodeRole
    from flowedge.v1.measure_pb2 import MeasureDeviceRequest

NO_DRAFTER = "none"
NGRAM = "ngram"
RECALL = "recall"
BUNDLED = "bundled"
BUNDLED_SMALL = "bundled-small"
BUNDLED_EAGLE3 = "bundled-eagle3"
BUNDLED_FOLDERS = {BUNDLED: "eagle", BUNDLED_SMALL: "small", BUNDLED_EAGLE3: "eagle3"}  # of flowedge/bundled
MOST_NAMES = 8  # that are joined to one drafter
WORDS = (NO_DRAFTER, NGRAM, RECALL, *BUNDLED_FOLDERS)


def drafter_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the drafters to join, checked; empty where nothing is to be drafted.

    A name is "ngram", "recall", a key of BUNDLED_FOLDERS, a directory or a hub id. "none" alone, an empty
    text and an empty sequence mean no drafter.

    Raises:
        BadRequestError: when a name is empty or repeated, "none" stands beside another name, or more than
            MOST_NAMES are given.
    """
    names = (given,) if isinstance(given, str) else tuple(given)
    if names in ((), ("",), (NO_DRAFTER,)):
        return ()
    if "" in names:
        raise BadRequestError(f"the drafter {drafter_label(names)} has an empty name; give each a name")
    if len(names) > MOST_NAMES:
        raise BadRequestError(f"{len(names)} drafters are named; at most {MOST_NAMES} can be joined")
    if NO_DRAFTER in names:
        raise BadRequestError(
            f"the drafter {NO_DRAFTER} cannot be joined with another; give {NO_DRAFTER} alone or leave it out"
        )
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise BadRequestError(f"the drafter {repeated} is not joined with itself; name it once")
    return names


def unknown_drafter(source: str) -> BadRequestError:
    """Return the error for a name that is neither a word of WORDS, a directory nor a hub id."""
    close = difflib.get_close_matches(source, WORDS, n=1)
    advice = f"did you mean {close[0]}?" if close else "to join drafters, name each by an option of its own"
    words = ", ".join(WORDS)
    return BadRequestError(
        f"drafter {source}: no such directory, and neither a hub id (owner/name) nor {words}; {advice}"
    )


def check_recall(names: Sequence[str], kinds: Sequence[DrafterKind | None]) -> None:
    """Check that "recall" stands beside an EAGLE head.

    Args:
        kinds: of the named drafters but "recall"; None where only the agents know the kind.

    Raises:
        BadRequestError: when there is no head that it could correct.
    """
    if RECALL in names and {"eagle", None}.isdisjoint(kinds):
        raise BadRequestError(
            f"drafter {drafter_label(names)}: {RECALL} corrects an EAGLE head, and there is none beside it"
        )


def drafter_label(names: Sequence[str]) -> str:
    """Return the names as one text for reports, logs and metrics, such as "bundled+ngram" or "none"."""
    return "+".join(names) or NO_DRAFTER


def drafter_value(names: Sequence[str]) -> str | list[str]:
    """Return the names as a YAML file has them: a text for one name or none, a list for several."""
    return list(names) if len(names) > 1 else drafter_label(names)


def drafters_of(message: DraftNodeRole | MeasureDeviceRequest) -> tuple[str, ...]:
    """Return the names in a message, checked as `drafter_names` does.

    A sender that knows no `drafters` has one name at most, in `drafter`, which otherwise is the names' label.
    """
    return drafter_names(message.drafters or message.drafter)
