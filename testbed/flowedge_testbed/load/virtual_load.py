"""A load on a virtual pipeline: requests start at their time, or when an answer is complete."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from flowedge.core.errors import CapacityError, DeadlineError
from flowedge.core.request import Failed, Finished, Opened, Request, Tokens
from flowedge.planning.virtual_pipeline import TimedOutput, VirtualPipeline
from flowedge_testbed.load.arrivals import LEAST_WAIT_S, Arrival, Arrivals, LoadAnswer

MAX_EVENTS = 200_000_000


class VirtualLoad:
    """The clients of a virtual pipeline. All follows from the arrivals, so that a second run is the same."""

    def __init__(
        self, pipeline: VirtualPipeline, arrivals: Arrivals, open_request: Callable[[int], Request]
    ) -> None:
        """open_request: makes the request of a number ready and returns it."""
        self.answers: dict[int, LoadAnswer] = {}
        self._pipeline = pipeline
        self._arrivals = arrivals
        self._open = open_request
        self._sessions: dict[str, int] = {}
        self._to_begin: deque[Arrival] = deque()  # in the order of their times
        self._seen = 0  # outputs of the pipeline that were taken

    def run(self, counted: range) -> None:
        """Let the load go on until the counted requests are answered or refused for want of room.

        Raises:
            FlowEdgeError: the other error that a request ends with.
            DeadlineError: when the pipeline stops before the answers are complete.
        """
        self._start(self._arrivals.first())
        left = set(counted)
        for _ in range(MAX_EVENTS):
            if not left:
                return
            if not self._pipeline.step():
                raise DeadlineError(
                    f"{len(left)} requests of a load are not answered: the pipeline has nothing left to do"
                )
            while self._to_begin and self._to_begin[0].begins <= self._pipeline.now:
                self._start(self._arrivals.begun(self._to_begin.popleft()))
            for timed in self._pipeline.outputs[self._seen :]:
                self._seen += 1
                left.discard(self._take(timed))
        raise DeadlineError(f"{len(left)} requests of a load are not answered after {MAX_EVENTS} events")

    def _start(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            request = self._open(arrival.number)
            self._sessions[request.session] = arrival.number
            self.answers[arrival.number] = LoadAnswer(arrival, len(request.prompt))
            self._pipeline.start(request, arrival.begins)
            self._to_begin.append(arrival)
        if arrivals:
            self._to_begin = deque(sorted(self._to_begin, key=lambda each: (each.begins, each.number)))

    def _take(self, timed: TimedOutput) -> int | None:
        """Take in an output; return the number of the request that it completes, if any."""
        output, number = timed.output, self._sessions[timed.output.session]
        match output:
            case Failed(error=CapacityError(retry_after_s=float(wait))):
                self.answers[number].refused = True
                self._start(self._arrivals.ended(number, timed.time + max(wait, LEAST_WAIT_S)))
                return number
            case Failed():
                raise output.error
            case Opened():
                self.answers[number].admitted_s = timed.time
            case Tokens():
                self.answers[number].take(output.token_ids, timed.time)
            case Finished():
                self.answers[number].ended_s = timed.time
                self._start(self._arrivals.ended(number, timed.time))
                return number
        return None
