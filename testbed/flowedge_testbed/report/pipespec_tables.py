"""The analysis of PipeSpec beside what runs counted: a table of each model's steps, and one of speed-ups."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowedge_testbed.report.entries import Entry, groups, mean_of, place_of
from flowedge_testbed.report.markdown import number, table, times
from flowedge_testbed.report.pipespec_equations import (
    Acceptance,
    ideal_speedup,
    steady_rho,
    synchronous_hierarchy_speedup,
    tokens_per_step,
)
from flowedge_testbed.results import added

_ABOUT_STEPS = (
    "A step is a batch of rows that returned to a verifying model; gamma is the mean number of draft tokens "
    "of steps that had any. alpha: the share of compared draft tokens that survived; then of those directly "
    "behind the model's own last token, and of those behind four survivors, which the equations take as "
    "equal. rho: the share of steps with draft tokens, counted and by equation 3. E(N): tokens a step, "
    "counted and by equation 1 with the counted alpha and gamma."
)
_ABOUT_SPEEDUPS = (
    "Times are of a draft layer, of a forward of each middle model, and of a token of plain decoding. The "
    "predicted speed-up of pipespec is equation 4 of the target, that of pipespec_sync equation 5, in which "
    "a middle model with the models before it is one draft model. Ideal is equation 6. The equations take "
    "steps as following one another, and all as long as those of plain decoding. Steps at once: how many "
    "steps the target made in the time of a token of plain decoding. Measured is the tokens of a step times "
    "these."
)


@dataclass(frozen=True)
class CountedHierarchy:
    """What the runs of one method of a place counted, over all datasets.

    Attributes:
        pairs: each verifying model with the model before it; the target last.
        verifiers: as in the entries of the results, added up.
        model_ms: milliseconds of a layer of the drafter, then of a forward of each middle model.
        synchronous: whether one model works at a time.
    """

    place: str
    label: str
    temperature: float
    entries: tuple[Entry, ...]
    pairs: tuple[Acceptance, ...]
    verifiers: tuple[Mapping[str, Any], ...]
    model_ms: tuple[float, ...]
    synchronous: bool


def analysis(entries: Sequence[Entry], synchronous: Container[str]) -> list[str]:
    """Return both tables, each behind what it says; `synchronous` is as in `hierarchies`."""
    found = list(hierarchies(entries, synchronous))
    return [_ABOUT_STEPS, step_table(found), _ABOUT_SPEEDUPS, speedup_table(found)]


def step_table(found: Sequence[CountedHierarchy]) -> str:
    """Return alpha, gamma, rho and E(N) of each verifying model (equations 1 to 3)."""
    header = [
        "Model", "Method", "T", "verifier", "alpha", "the first", "behind four", "gamma", "rho", "eq. 3",
        "E(N)", "eq. 1", "rollbacks",
    ]  # fmt: skip
    rows: list[list[str]] = []
    for each in found:
        rollbacks = [sum(counts) for counts in zip(*(e["rollbacks"] for e in each.entries), strict=True)]
        for level, (pair, counts) in enumerate(zip(each.pairs, each.verifiers, strict=True), start=1):
            rows.append(
                [
                    each.place,
                    each.label,
                    f"{each.temperature:g}",
                    "target" if level == len(each.pairs) else f"M{level}",
                    number(pair.alpha),
                    number(_survived(counts, 0)),
                    number(_survived(counts, 4)),
                    number(pair.gamma, 1),
                    number(counts["verifying"] / max(counts["steps"], 1)),
                    "" if each.synchronous else number(steady_rho(pair)),
                    number(counts["tokens"] / max(counts["steps"], 1)),
                    number(tokens_per_step(pair, 1.0 if each.synchronous else None)),
                    str(rollbacks[level - 1]),
                ]
            )
    return table(header, rows, left=2)


def speedup_table(found: Sequence[CountedHierarchy]) -> str:
    """Return predicted speed-ups beside the measured ones (equations 4 to 6)."""
    header = [
        "Model", "Method", "T", "ms of each model", "predicted", "ideal", "steps at once", "measured",
    ]  # fmt: skip
    rows: list[list[str]] = []
    for each in found:
        measured = mean_of(each.entries, "speedup_vs_autoregressive")
        speed = mean_of(each.entries, "tokens_per_s")
        plain_ms = 1e3 * measured / speed if measured and speed else None
        every_ms = [*each.model_ms, plain_ms]
        of_step = each.verifiers[-1]["tokens"] / max(each.verifiers[-1]["steps"], 1)
        rows.append(
            [
                each.place,
                each.label,
                f"{each.temperature:g}",
                ", ".join(number(milliseconds, 1) for milliseconds in every_ms),
                times(predicted_speedup(each, plain_ms)),
                "" if each.synchronous else times(ideal_speedup(each.pairs[-1])),
                number(measured / of_step if measured and of_step else None),
                times(measured),
            ]
        )
    return table(header, rows, left=2)


def predicted_speedup(hierarchy: CountedHierarchy, plain_ms: float | None) -> float | None:
    """Return the speed-up by equation 4 or 5; None where equation 5 lacks the time of a plain token."""
    if not hierarchy.synchronous:
        return tokens_per_step(hierarchy.pairs[-1])
    if plain_ms is None or not all(hierarchy.model_ms):
        return None
    return synchronous_hierarchy_speedup(hierarchy.pairs, [*hierarchy.model_ms, plain_ms])


def hierarchies(entries: Sequence[Entry], synchronous: Container[str]) -> Iterator[CountedHierarchy]:
    """Yield what was counted of each hierarchy at each place, temperature and kind of drafting.

    synchronous: the methods of which one model works at a time.
    """
    counted = [entry for entry in entries if "verifiers" in entry]
    for place, temperature, variant, own in groups(counted, place_of):
        verifiers = tuple(map(_added, zip(*(entry["verifiers"] for entry in own), strict=True)))
        model_ms = [entry["model_ms"] for entry in own]
        yield CountedHierarchy(
            place,
            variant.label,
            temperature,
            tuple(own),
            tuple(map(_acceptance, verifiers)),
            verifiers,
            tuple(sum(of_model) / len(own) for of_model in zip(*model_ms, strict=True)),
            variant.method in synchronous,
        )


def _added(counts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of one model's counts over datasets."""
    return {
        name: added(each[name] for each in counts)
        if isinstance(value, list)
        else sum(each[name] for each in counts)
        for name, value in counts[0].items()
    }


def _acceptance(counts: Mapping[str, Any]) -> Acceptance:
    compared = sum(counts["compared"])
    alpha = sum(counts["survived"]) / compared if compared else 0.0
    return Acceptance(alpha, counts["drafted"] / counts["verifying"] if counts["verifying"] else 0.0)


def _survived(counts: Mapping[str, Any], place: int) -> float | None:
    """Return the share of compared draft tokens that survived at a place; None if there were none."""
    compared = counts["compared"][place] if place < len(counts["compared"]) else 0
    return counts["survived"][place] / compared if compared else None
