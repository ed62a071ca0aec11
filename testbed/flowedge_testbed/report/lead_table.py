"""The table of auto's leads by place, and the sentences that sum it up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from flowedge_testbed.report.entries import Entry, unique
from flowedge_testbed.report.figures.spread import DIFFERENCE
from flowedge_testbed.report.leads import HELD, Lead, LeadSummary, leads
from flowedge_testbed.report.markdown import give_or_take, number, table

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
    if len(kinds) > 1:
        parts += ["All of them", _list(lead_lines(found))]
    return parts


def lead_lines(found: Sequence[Lead]) -> Iterator[str]:
    """Yield the sentences that sum up one lead or more."""
    whole = LeadSummary.of(found)
    least, plain = whole.worst, whole.worst_plain
    yield f"auto / best other: geometric mean {whole.mean:.3f} of {len(found)}"
    yield f"least auto / best other: {least.ratio:.3f}, {_at(least)}, beside {least.rival}"
    yield f"below {HELD:g} of the best other: {_counted(whole.behind, found)}"
    yield from _chance(found)
    if plain is not None:
        yield f"least auto / plain decoding: {plain.plain_ratio:.3f}, {_at(plain)}"
        yield f"below {HELD:g} of plain decoding: {_counted(whole.behind_plain, found)}"


def _chance(found: Sequence[Lead]) -> Iterator[str]:
    """Yield which leads may be chance, and how many prompts would tell a small one from it."""
    known = sorted(lead.prompts_needed for lead in found if lead.prompts_needed is not None)
    if not known:
        yield "intervals over the prompts: none, for a dataset has one prompt"
        return
    yield f"may be chance (the interval holds 1): {_counted([e for e in found if e.by_chance], found)}"
    yield (
        f"prompts of a dataset that tell {100 * DIFFERENCE:g} % from chance: {known[len(known) // 2]} at the "
        f"median place, {known[-1]} at the most varied; there were {min(lead.prompts for lead in found)}"
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
            lead.rival,
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
