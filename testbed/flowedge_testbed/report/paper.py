"""The figures of papers, FlowSpec's first, that reports show beside ours (reference/paper_results.json)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from flowedge_testbed.report.entries import Entry, Variant, unique

DEPTHS = ("option.depth", "option.expand_depth")
REFERENCE = Path(__file__).parents[1] / "reference" / "paper_results.json"

# The paper's FlowSpec is our flowspec_paper. Our flowspec is asynchronous and has no counterpart there.
COUNTERPARTS = {
    "naive_pp": "naive_pp",
    "pruned_pp": "pruned_pp",
    "flowspec_no_sbd": "flowspec_no_sbd",
    "flowspec_paper": "flowspec",
    "pipedec": "pipedec",
}


@cache
def paper() -> dict[str, Any]:
    """Return the content of the whole file."""
    content: dict[str, Any] = json.loads(REFERENCE.read_text(encoding="utf-8"))
    return content


def lookup(*keys: str) -> Any:
    """Return the figure under a path of keys, or None."""
    found: Any = paper()
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found


def published(entries: Sequence[Entry], *keys: str) -> Any:
    """Return the paper's figure under these keys.

    None if there is none, if entries are of real devices, or if they are a point of a sweep: a paper's figure
    is of its own setting.
    """
    comparable = all(entry["emulated"] and not entry["point"] for entry in entries)
    return lookup(*keys) if comparable else None


def published_sweep(entries: Sequence[Entry], axis: str) -> dict[str, list[float]]:
    """Return tokens/s of a published sweep along an axis by method, if its values are the entries'."""
    values = unique(entry["point"].get(axis) for entry in entries)
    sweep = lookup("bandwidth_sweep_tokens_per_s") if axis == "mbps" else None
    if sweep is None or sweep["mbps"] != values:
        return {}
    return {name: figures for name, figures in sweep.items() if name != "mbps"}


def published_map(
    entries: Sequence[Entry], axes: tuple[str, str], variant: Variant
) -> dict[tuple[float, float], float]:
    """Return published tokens/s of a method by its points on two axes; none for most axes and models."""
    sweep = lookup("depth_sweep_tokens_per_s")
    figures = sweep.get(model_key(entries[0]["profile"]).replace("-", "_"))
    if axes != DEPTHS or counterpart(variant) != "flowspec" or figures is None:
        return {}
    return {
        (down, right): figure
        for down, row in zip(sweep["rows_d0"], figures, strict=True)
        for right, figure in zip(sweep["cols_d_exp"], row, strict=True)
    }


def counterpart(variant: Variant) -> str:
    """Return the paper's name of a method as published; empty if the paper has no such method."""
    return COUNTERPARTS.get(variant.method, "") if variant.plain else ""


def temperature_key(temperature: float) -> str:
    return f"T={temperature:g}"


def model_key(profile: str) -> str:
    """Return the model's name without its format."""
    return profile.rsplit("-", 1)[0]
