"""PipeDec's schedule of transfers (pipedec, appendix A, algorithms 2 and 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Transfer:
    """What a device sends to another.

    Attributes:
        source, target: the devices; seconds: from the beginning until the target has it.
    """

    source: int
    target: int
    seconds: float


def central_schedule(transfers: Sequence[Transfer]) -> list[float]:
    """Return when each transfer begins, in seconds from now.

    A device takes part in one transfer at a time, be it as the source or as the target (the bitmap of
    algorithm 2). The pending transfers are scanned in order whenever a target has received one (algorithm 3,
    line 11), and those whose two devices are free begin. Telling the devices so takes no time here.

    For a chain of three transfers of 1 s, the first and the last begin at 0 s, and the one between at 1 s.
    """
    starts = [0.0] * len(transfers)
    pending = list(range(len(transfers)))
    running: dict[int, float] = {}  # transfer -> when it ends
    now = 0.0
    while pending:
        running = {index: end for index, end in running.items() if end > now}
        busy = {node for index in running for node in _nodes(transfers[index])}
        waiting: list[int] = []
        for index in pending:
            if busy.isdisjoint(_nodes(transfers[index])):
                busy.update(_nodes(transfers[index]))
                starts[index], running[index] = now, now + transfers[index].seconds
            else:
                waiting.append(index)
        pending = waiting
        now = min(running.values())
    return starts


def at_once(transfers: Sequence[Transfer]) -> list[float]:
    """Return when each transfer begins if devices do not wait for each other, in seconds from now.

    What a device sends, it sends in order.
    """
    free: dict[int, float] = {}
    starts: list[float] = []
    for transfer in transfers:
        starts.append(free.get(transfer.source, 0.0))
        free[transfer.source] = starts[-1] + transfer.seconds
    return starts


def _nodes(transfer: Transfer) -> tuple[int, int]:
    return transfer.source, transfer.target
