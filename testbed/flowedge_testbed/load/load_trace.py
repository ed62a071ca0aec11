"""The trace of a load: what devices did for which request, and the part of it that a chart shows."""

from __future__ import annotations

from flowedge.engine.activity import FORWARD
from flowedge.simulate.virtual_pipeline import Costs
from flowedge_testbed.load.load_record import LoadRecord
from flowedge_testbed.trace import NO_SESSION, Trace, TraceObserver

CHARTED_FORWARDS = 32  # forwards of a stage that a chart shows, about


class LoadObserver(TraceObserver):
    """An observer that writes the number of the request beside everything that was done for it."""

    def __init__(self, costs: Costs) -> None:
        super().__init__(costs)
        self._numbers: dict[str, int] = {}

    def know(self, session: str, number: int) -> None:
        """Take notice of a session and the number of its request."""
        self._numbers[session] = number

    def number_of(self, session: str) -> int:
        return self._numbers.get(session, NO_SESSION)


def charted_span(record: LoadRecord, trace: Trace) -> tuple[float, float]:
    """Return a span in the middle of the measurement, short enough for single forwards to be legible."""
    start, end = record.window
    forwards = sorted(each.end - each.start for each in trace.intervals if each.kind == FORWARD)
    usual = forwards[len(forwards) // 2] if forwards else 0.1
    length = min(max(CHARTED_FORWARDS * usual, 1e-3), end - start)
    first = (start + end - length) / 2
    return first, first + length


def charted_part(record: LoadRecord, trace: Trace) -> Trace:
    """Return the part of a trace that a chart shows."""
    start, end = charted_span(record, trace)
    return Trace(
        [each for each in trace.intervals if each.end > start and each.start < end],
        [mark for mark in trace.prunes if start <= mark.time < end],
        trace.express_bytes,
        trace.uncertainty_s,
    )
