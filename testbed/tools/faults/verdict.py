"""What faults did to answers, by their kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.tools.faults.answers import HANG_S, Answer
from testbed.tools.faults.schedule import InjectedFault

_BEFORE_S = 1.0  # a pause may begin so long before its fault: it begins with the token before


@dataclass(frozen=True)
class Happened:
    """A fault that happened, from `began` to `ended` on time.monotonic()."""

    fault: InjectedFault
    began: float
    ended: float


@dataclass(frozen=True)
class KindVerdict:
    """What the faults of one kind did.

    Attributes:
        pauses: seconds of the pauses that they made, ascending.
        lost, different: answers that ended with an error, or with other tokens.
    """

    kind: str
    faults: int
    pauses: tuple[float, ...]
    lost: int
    different: int


def cause_of(moment: float, happened: Sequence[Happened]) -> Happened | None:
    """Return the fault by which an answer stood still from a moment on; None if none had begun by then."""
    begun = [each for each in happened if each.began <= moment + _BEFORE_S]
    return begun[-1] if begun else None


def verdicts(happened: Sequence[Happened], answers: Sequence[Answer]) -> list[KindVerdict]:
    """Return what the faults of each kind did, in the order of the kinds' first faults."""
    found = []
    for kind in dict.fromkeys(each.fault.kind for each in happened):
        pauses = sorted(
            seconds
            for answer in answers
            for moment, seconds in answer.pauses
            if (cause := cause_of(moment, happened)) is not None and cause.fault.kind == kind
        )
        ended = [
            answer
            for answer in answers
            if (cause := cause_of(answer.ended, happened)) is not None and cause.fault.kind == kind
        ]
        lost = sum(bool(answer.error) for answer in ended)
        different = sum(not answer.error and not answer.equal for answer in ended)
        number = sum(each.fault.kind == kind for each in happened)
        found.append(KindVerdict(kind, number, tuple(pauses), lost, different))
    return found


def table(found: Sequence[KindVerdict]) -> str:
    """Return a Markdown table of the verdicts."""
    rows = [
        "| Fault | faults | pauses over 1 s | median, s | 90 % | 99 % | longest | answers lost | changed |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for each in (*found, _all(found)):
        shares = " | ".join(_share(each.pauses, share) for share in (0.5, 0.9, 0.99, 1.0))
        told = f"{each.faults} | {len(each.pauses)} | {shares} | {each.lost} | {each.different}"
        rows.append(f"| {each.kind} | {told} |")
    return "\n".join(rows)


def _all(found: Sequence[KindVerdict]) -> KindVerdict:
    pauses = tuple(sorted(pause for each in found for pause in each.pauses))
    faults, lost, different = (
        sum(getattr(each, name) for each in found) for name in ("faults", "lost", "different")
    )
    return KindVerdict("all", faults, pauses, lost, different)


def sound(answers: Sequence[Answer]) -> bool:
    """Return whether there are answers, and each came to its end, unchanged and without a pause of HANG_S."""
    hung = any(seconds > HANG_S for answer in answers for _, seconds in answer.pauses)
    return bool(answers) and not hung and all(answer.equal and not answer.error for answer in answers)


def _share(values: Sequence[float], share: float) -> str:
    if not values:
        return ""
    return f"{values[min(int(share * len(values)), len(values) - 1)]:.1f}"
