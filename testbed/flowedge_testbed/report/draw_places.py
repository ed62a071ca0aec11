"""Where each method's tokens were drawn, in words: every report names the place."""

from __future__ import annotations

from collections.abc import Sequence

from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE
from flowedge_testbed.report.entries import Entry, unique

_WORDS = {DRAFT_NODE: "D0", LAST_STAGE: "the last stage"}
_UNKNOWN = "where the hosts measured less time"  # auto, on real hosts


def drawn_on(entries: Sequence[Entry]) -> str:
    """Return where the tokens of these entries were drawn, every place once."""
    return " or ".join(unique(_WORDS.get(entry["verification"], _UNKNOWN) for entry in entries))


def drawn_line(entries: Sequence[Entry]) -> str:
    """Return the line of a report's settings that says where each method drew; entries may be of a load.

    A method with several pipelines may draw on D0 in some of them: then the line counts them.
    """
    by_place: dict[str, list[str]] = {}
    for method in unique(entry["method"] for entry in entries):
        own = [entry for entry in entries if entry["method"] == method]
        pipelines = {(entry["profile"], str(entry["point"])): entry["verification"] for entry in own}
        there = sum(place == DRAFT_NODE for place in pipelines.values())
        counted = f" (D0 in {there} of {len(pipelines)} pipelines)" if 0 < there < len(pipelines) else ""
        by_place.setdefault(drawn_on(own), []).append(f"{method}{counted}")
    told = "; ".join(f"on {place} by {', '.join(methods)}" for place, methods in by_place.items())
    return f"- Tokens are drawn {told.replace(f'on {_UNKNOWN}', _UNKNOWN)}."
