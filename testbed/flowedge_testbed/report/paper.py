"""The figures of the FlowSpec paper that reports are held against (reference/paper_results.json)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).parents[1] / "reference" / "paper_results.json"

# The paper's FlowSpec is our flowspec_paper; our flowspec is asynchronous and has no counterpart there.
COUNTERPARTS = {
    "naive_pp": "naive_pp",
    "pruned_pp": "pruned_pp",
    "flowspec_no_sbd": "flowspec_no_sbd",
    "flowspec_paper": "flowspec",
    "pipedec": "pipedec",
}


@cache
def paper() -> dict[str, Any]:
    """The whole file."""
    content: dict[str, Any] = json.loads(REFERENCE.read_text(encoding="utf-8"))
    return content


def lookup(*keys: str) -> Any:
    """What is under these keys, one in another; None where there is nothing."""
    found: Any = paper()
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found


def temperature_key(temperature: float) -> str:
    return f"T={temperature:g}"


def model_key(profile: str) -> str:
    """The model's name without its quantisation."""
    return profile.rsplit("-", 1)[0]
