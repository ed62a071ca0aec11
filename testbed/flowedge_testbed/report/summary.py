"""The five lines that a report begins with: what was run, on what, what was fastest, doubts, the command.

A scenario with a table of places has auto's lead over the best other method in place of the fastest method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowedge.drafting.choice import BUNDLED
from flowedge_testbed.prompts import OWN
from flowedge_testbed.report.entries import Entry, mean_of, unique, variants
from flowedge_testbed.report.figures.spread import DIFFERENCE, prompts_needed, ratio_half_width
from flowedge_testbed.report.lead_table import lead_lines
from flowedge_testbed.report.leads import leads
from flowedge_testbed.report.markdown import give_or_take
from flowedge_testbed.report.origin import Origin
from flowedge_testbed.report.same_results import EqualVariants, by_temperature, equal_variants
from flowedge_testbed.results import BASELINES
from flowedge_testbed.scenario import Scenario

FEW_PROMPTS = 10  # of a dataset; with fewer, chance decides between methods that are close


@dataclass(frozen=True)
class BenchSummary:
    """A benchmark in five lines, each a name and a text."""

    lines: tuple[tuple[str, str], ...]

    @property
    def markdown(self) -> str:
        return "\n".join(f"- **{name}:** {text}" for name, text in self.lines)

    @property
    def plain(self) -> list[str]:
        """The lines for a terminal."""
        return [f"{name}: {text.strip('`')}" for name, text in self.lines]


def summarise(scenario: Scenario, results: Mapping[str, Any], origin: Origin, command: str) -> BenchSummary:
    """Return the summary of a benchmark; `command` is the command that gives the same results."""
    entries: list[Entry] = results["runs"]
    methods = len(unique(entry["method"] for entry in entries))
    run = f"{scenario.title}: {methods} {'method' if methods == 1 else 'methods'}, {origin.prompts}"
    found = leads(entries) if "places" in scenario.report.tables else []
    best = ("Lead", "; ".join(lead_lines(found))) if found else ("Fastest", "; ".join(_fastest(entries)))
    return BenchSummary(
        (
            ("Run", f"{run}{', --quick' if results['quick'] else ''}"),
            ("On", f"{origin.devices}; {origin.tokens}"),
            best,
            ("Distrust", "; ".join(doubts(scenario, results))),
            ("Command", f"`{command}`"),
        )
    )


def _fastest(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the fastest method of each model, by temperature."""
    told: dict[str, list[str]] = {}
    for models, temperature, mine in by_temperature(entries):
        told.setdefault(models.label, []).append(f"{fastest(mine)} at temperature {temperature:g}")
    yield from (f"{label}: {', '.join(each)}" for label, each in told.items())


def fastest(entries: Sequence[Entry]) -> str:
    """Return which method has the most tokens/s, and by how much, in entries of one model and temperature.

    The figures are means over datasets and points of a sweep. Methods that lack a figure are left out.
    """
    ranked = _ranked(entries)
    if not ranked:
        return "no speed was measured, since no answer has more than one token,"
    speed, winner = ranked[0]
    others = {f"the next, {method.label}": other for other, method in ranked[1:2]}
    shown = {member for _, method in ranked[:2] for member in method.members}
    for other, method in ranked:
        for member in method.members:
            if member.plain and member.method in BASELINES and member not in shown:
                others[member.method] = other
    width = _lead_half_width(entries, ranked)
    told = []
    for place, (name, other) in enumerate(others.items()):
        ratio = f"{speed / other:.2f}"
        told.append(f"{give_or_take(ratio, width if place == 0 else None)} x {name}")
    points = unique(tuple(entry["point"].items()) for entry in entries)
    if len(points) > 1:
        told.append(f"fastest at {_points_won(entries, winner)} of {len(points)} points of the sweep")
    lead = f" ({', '.join(told)})" if told else ""
    mean = f" on average over {len(points)} points" if len(points) > 1 else ""
    return f"{winner.label} with {speed:.3g} tokens/s{mean}{lead}"


def _ranked(entries: Sequence[Entry]) -> list[tuple[float, EqualVariants]]:
    """Return the methods with their tokens/s, the fastest first. Methods that lack a figure are left out."""
    speeds = [
        (mean_of(method.first.of(entries), "tokens_per_s"), method) for method in equal_variants(entries)
    ]
    known = [(speed, method) for speed, method in speeds if speed]
    return sorted(known, key=lambda pair: pair[0], reverse=True)


def _lead_half_width(entries: Sequence[Entry], ranked: Sequence[tuple[float, EqualVariants]]) -> float | None:
    """Return the half width over prompts of the fastest method's tokens/s over the next one's."""
    if len(ranked) < 2:
        return None
    best, following = (method.first.of(entries) for _, method in ranked[:2])
    return ratio_half_width(best, following)


def _chance(entries: Sequence[Entry]) -> float | None:
    """Return the largest share that the two fastest methods of a model may differ by chance."""
    found = []
    for _, _, mine in by_temperature(entries):
        ranked = _ranked(mine)
        width = _lead_half_width(mine, ranked)
        if width is not None:
            found.append(width * ranked[1][0] / ranked[0][0])
    return max(found, default=None)


def _points_won(entries: Sequence[Entry], method: EqualVariants) -> int:
    """Return the number of points of the sweep at which no method has more tokens/s."""
    won = 0
    for point in unique(tuple(entry["point"].items()) for entry in entries):
        there = [entry for entry in entries if tuple(entry["point"].items()) == point]
        best = max(mean_of(variant.of(there), "tokens_per_s") or 0.0 for variant in variants(there))
        won += mean_of(method.first.of(there), "tokens_per_s") == best
    return won


def doubts(scenario: Scenario, results: Mapping[str, Any]) -> list[str]:
    """Return the reasons to distrust the figures, the gravest first; there is always one."""
    entries: list[Entry] = results["runs"]
    found = []
    if results["outputs_differ"]:
        found.append(f"OUTPUTS DIFFER from the first method's: {', '.join(results['outputs_differ'])}")
    if scenario.clock == "real":
        found.append("other work on the devices is in the figures, and a second run takes another time")
    else:
        found.append("no device was measured: times are computed from the profiles of devices and links")
        pair = "the bundled models'" if scenario.pair.target == BUNDLED else "the real models'"
        found.append(f"how many draft tokens are accepted is {pair}, not the emulated models'")
    if scenario.clock == "paced":
        found.append("a busy machine overruns the emulated times (schedule in run.json)")
    fewest = min(found_set["prompts"] for found_set in results["datasets"].values())
    chance = None if "places" in scenario.report.tables else _chance(entries)
    if chance is not None and chance > DIFFERENCE:
        found.append(
            f"with {fewest} prompts of a dataset the two fastest may differ by {100 * chance:.1f} % by "
            f"chance; {100 * DIFFERENCE:g} % takes {prompts_needed(chance, fewest)}"
        )
    elif chance is None and fewest < FEW_PROMPTS:
        counted = "1 prompt" if fewest == 1 else f"{fewest} prompts"
        found.append(f"only {counted} of a dataset: a lead of some percent may be chance")
    if OWN in results["datasets"] and OWN not in scenario.datasets:
        found.append("the scenario's datasets were not found, so these are the project's own prompts")
    looping = sum(entry["looping_requests"] for entry in entries)
    if looping:
        asked = sum(entry["requests"] for entry in entries)
        found.append(f"{looping} of {asked} answers loop, which drafters foresee")
    return found
