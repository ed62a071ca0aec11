"""The names that --drafter, a configuration, a scenario and a role give a drafter by. Imports no torch."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import NO_DRAFTER, drafter_label, drafter_names

if TYPE_CHECKING:
    from flowedge.drafting.drafter_kind import DrafterKind
    from flowedge.v1.measure_pb2 import MeasureDeviceRequest

NGRAM = "ngram"
RECALL = "recall"
BUNDLED = "bundled"
BUNDLED_SMALL = "bundled-small"
BUNDLED_EAGLE3 = "bundled-eagle3"
BUNDLED_FOLDERS = {BUNDLED: "eagle", BUNDLED_SMALL: "small", BUNDLED_EAGLE3: "eagle3"}  # of flowedge/bundled
WORDS = (NO_DRAFTER, NGRAM, RECALL, *BUNDLED_FOLDERS)


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


def drafter_value(names: Sequence[str]) -> str | list[str]:
    """Return the names as a YAML file has them: a text for one name or none, a list for several."""
    return list(names) if len(names) > 1 else drafter_label(names)


def drafters_of(message: MeasureDeviceRequest) -> tuple[str, ...]:
    """Return the names of the drafters to measure, checked as `drafter_names` does.

    A sender that knows no `drafters` has one name at most, in `drafter`, which otherwise is the names' label.
    """
    return drafter_names(message.drafters or message.drafter)
