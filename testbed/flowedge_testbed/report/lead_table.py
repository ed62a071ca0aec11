"""The table of auto's leads by place, and the sentences that sum it up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from flowedge_testbed.report.entries import Entry, place_of, unique
from flowedge_testbed.report.figures.spread import DIFFERENCE
from flowedge_testbed.report.leads import HELD, Lead, LeadSummary, leads, setting_label
from flowedge_testbed.report.markdown import give_or_take, number, table
from flowedge_testbed.results import CHUNK

_TUNED = (
    "The best setting of each tuned method, found on these very prompts, and its tokens/s over those of the "
    "method's own setting:"
)
_HEADER = ("Place", "best other", "tokens/s", "auto", "auto / best other", "plain", "auto / plain")


def lead_tables(entries: Sequence[Entry]) -> list[str]:
    """Return a table and its summary for each temperature and kind of drafting, then the summary of all."""
    found = leads(entries)
    if not found:
        return ["No place has figures of auto and of another method."]
    parts = []
    kinds = unique((lead.temperature, lead.noise) for lead in found)
    for temperature, noise in kinds:
        mine = [lead for lead in found if (lead.temperature, lead.noise) == (temperature, noise)]
        drafting = "" if temperature == 0 else f", {noise} noise"
        parts += [f"Temperature {temperature:g}{drafting}", _table(mine), _list(lead_lines(mine))]
        there = [each for each in entries if (each["temperature"], each["noise"]) == (temperature, noise)]
        if any("tuned" in each for each in there):
            parts += [_TUNED, tuned_table(there)]
    if len(kinds) > 1:
        parts += ["All of them", _list(lead_lines(found))]
    return parts


def tuned_table(entries: Sequence[Entry]) -> str:
    """Return the best setting of each tuned method by place, and what it gains.

    entries: of one temperature and kind of drafting.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for entry in entries:
        if "tuned" in entry:
            found.setdefault(place_of(entry), {})[entry["method"]] = entry["tuned"]
    methods = unique(method for each in found.values() for method in each)
    rows = [[place, *(_tuned_cell(each.get(method)) for method in methods)] for place, each in found.items()]
    gains = [[each[method]["gain"] for each in found.values() if method in each] for method in methods]
    means = [number(geometric_mean(filter(None, of_method)), 3) for of_method in gains]
    return table(["Place", *methods], [*rows, ["geometric mean", *means]], left=1 + len(methods))


def _tuned_cell(tuned: Mapping[str, Any] | None) -> str:
    return "" if tuned is None else f"{number(tuned['gain'])}: {setting_label(tuned['setting'])}"


def lead_lines(found: Sequence[Lead]) -> Iterator[str]:
    """Yield the sentences that sum up one lead or more."""
    whole = LeadSummary.of(found)
    least, plain = whole.worst, whole.worst_plain
    yield f"auto / best other: geometric mean {whole.mean:.3f} of {len(found)}"
    if whole.untuned_mean is not None:
        yield f"the same where the others have their own settings: {whole.untuned_mean:.3f}"
    yield f"least auto / best other: {least.ratio:.3f}, {_at(least)}, beside {least.rival_label}"
    yield f"below {HELD:g} of the best other: {_counted(whole.behind, found)}"
    yield from _chance(found)
    if plain is not None:
        yield f"least auto / plain decoding: {plain.plain_ratio:.3f}, {_at(plain)}"
        yield f"below {HELD:g} of plain decoding: {_counted(whole.behind_plain, found)}"


def _chance(found: Sequence[Lead]) -> Iterator[str]:
    """Yield which leads may be chance, and how many prompts would tell a small one from it."""
    if all(lead.half_width is None for lead in found):
        yield "intervals over the prompts: none, for a dataset has one prompt"
        return
    surely = [lead for lead in found if lead.surely_behind]
    yield f"below {HELD:g} with the whole interval: {_counted(surely, found)}"
    yield f"may be chance (the interval holds 1): {_counted([e for e in found if e.by_chance], found)}"
    known = sorted(lead.prompts_needed for lead in found if lead.prompts_needed is not None)
    if known:
        yield (
            f"prompts of a dataset that tell {100 * DIFFERENCE:g} % from chance: {known[len(known) // 2]} at "
            f"the median place, {known[-1]} at the most varied; there were {min(e.prompts for e in found)}"
        )
    else:
        yield (
            f"a dataset has one prompt, so intervals are over chunks of {CHUNK} tokens of the answers; they "
            "leave out how prompts differ"
        )


def _list(lines: Iterator[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _at(lead: Lead) -> str:
    return f"{lead.place} at temperature {lead.temperature:g}"


def _counted(some: Sequence[Lead], found: Sequence[Lead]) -> str:
    """Return how many leads of all found they are, and their places."""
    several = len(unique(lead.temperature for lead in found)) > 1
    places = []
    for place in unique(lead.place for lead in some):
        at = " and ".join(f"{lead.temperature:g}" for lead in some if lead.place == place)
        places.append(f"{place} (at {at})" if several else place)
    return f"{len(some)} of {len(found)}" + (f": {', '.join(places)}" if places else "")


def _table(found: Sequence[Lead]) -> str:
    rows = [
        [
            lead.place,
            lead.rival_label,
            _speed(lead.rival_speed),
            _speed(lead.speed),
            give_or_take(_share(lead.ratio), lead.half_width),
            _speed(lead.plain_speed),
            _share(lead.plain_ratio),
        ]
        for lead in found
    ]
    return table(_HEADER, rows, left=2)


def _speed(value: float | None) -> str:
    """Return tokens/s with at least three digits."""
    return "" if value is None else number(value, max(0, 2 - int(math.log10(max(value, 1)))))


def _share(ratio: float | None) -> str:
    """Return a ratio, in bold where auto is behind."""
    shown = number(ratio)
    return f"**{shown}**" if ratio is not None and ratio < HELD else shown
