"""The record of a load point: what a benchmark stores of its requests and reports, and its trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from flowedge.core.errors import CapacityError, DeadlineError
from flowedge.engine.activity import COMPUTING, FORWARD
from flowedge.planning.virtual_pipeline import Costs
from flowedge_testbed.load.arrivals import LoadAnswer
from flowedge_testbed.load.pipeline_use import PipelineUse, row_shares
from flowedge_testbed.trace import NO_SESSION, Interval, Trace, TraceObserver


@dataclass(frozen=True)
class ServedRequest:
    """One counted request; times in seconds.

    Attributes:
        output: a digest of the tokens.
        asked_s: when its client asked it, since the load began.
        ttft_s, latency_s: from then to the first token, and to the last.
        queued_s: from then until the first stage began to compute its prompt.
        admitted_s: from then until it was begun: when its batch began, and there was room for it.
        itl_s: times between tokens. Tokens that come out together are 0 apart.
        row_share: stage rows that it got over an equal share (see row_shares); None if it did not decode.
    """

    number: int
    prompt_tokens: int
    new_tokens: int
    output: str
    asked_s: float
    ttft_s: float
    latency_s: float
    queued_s: float
    admitted_s: float
    itl_s: tuple[float, ...]
    row_share: float | None

    @property
    def decode_s(self) -> float:
        """From the first token to the last."""
        return self.latency_s - self.ttft_s

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens after the first over the decode time; None if all tokens came out at once."""
        return (self.new_tokens - 1) / self.decode_s if self.decode_s > 0 else None


@dataclass(frozen=True)
class LoadRecord:
    """A load point by one method.

    Attributes:
        window: from the beginning of the first counted request to the last token of the counted answers, in
            seconds since the load began.
        window_tokens, window_requests: tokens put out and answers completed within, those of requests that
            are not counted included.
        requests: that were answered; refused: the number of counted requests for which there was no room.
    """

    window: tuple[float, float]
    window_tokens: int
    window_requests: int
    requests: tuple[ServedRequest, ...]
    use: PipelineUse
    refused: int = 0

    @property
    def window_s(self) -> float:
        return self.window[1] - self.window[0]

    @property
    def new_tokens(self) -> int:
        """The tokens of the counted answers."""
        return sum(request.new_tokens for request in self.requests)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> LoadRecord:
        """Return the record that `to_dict` turned into this content, after JSON."""
        use = dict(content["use"])
        for name in ("rows", "sessions"):
            use[name] = tuple((value, count) for value, count in use[name])
        requests = (ServedRequest(**{**each, "itl_s": tuple(each["itl_s"])}) for each in content["requests"])
        start, end = content["window"]
        values = {"window": (start, end), "requests": tuple(requests), "use": PipelineUse(**use)}
        return cls(**{**content, **values})


def load_record(
    answers: Mapping[int, LoadAnswer], counted: range, trace: Trace, places: Sequence[int]
) -> LoadRecord:
    """Return the record of a load.

    Args:
        answers: by number; the counted requests are answered or refused.
        trace: what the devices did for all requests, by their numbers; places: the places of the devices.

    Raises:
        CapacityError: when every counted request was refused.
        DeadlineError: when an answer has no token.
    """
    mine = [answers[number] for number in counted if not answers[number].refused]
    if not mine:
        raise CapacityError(
            f"all {len(counted)} requests of a load were refused for want of room; let fewer come at a time, "
            "or raise limits.queued_requests or deadlines.queue_s of the draft node"
        )
    if silent := [answer.arrival.number for answer in mine if not answer.token_s]:
        raise DeadlineError(f"requests {', '.join(map(str, silent))} of a load have no token")
    window = (min(answer.arrival.begins for answer in mine), max(answer.token_s[-1] for answer in mine))
    every = [time for answer in answers.values() for time in answer.token_s]
    ends = [answer.token_s[-1] for answer in answers.values() if answer.ended_s is not None]
    decoding = {
        number: (answer.token_s[0], answer.token_s[-1])
        for number, answer in answers.items()
        if answer.token_s
    }
    shares = row_shares(trace.intervals, decoding)
    begun = _first_rows(trace.intervals)
    return LoadRecord(
        window=window,
        window_tokens=sum(window[0] < time <= window[1] for time in every),
        window_requests=sum(window[0] < time <= window[1] for time in ends),
        requests=tuple(
            _served(answer, begun.get(answer.arrival.number), shares.get(answer.arrival.number))
            for answer in mine
        ),
        use=PipelineUse.between(trace.intervals, places, window),
        refused=len(counted) - len(mine),
    )


def _first_rows(intervals: Sequence[Interval]) -> dict[int, float]:
    """Return when the first stage began to compute the prompt of each session."""
    found: dict[int, float] = {}
    for interval in intervals:
        if interval.place == 0 and interval.kind in COMPUTING and interval.rows:
            found[interval.session] = min(found.get(interval.session, interval.start), interval.start)
    return found


def _served(answer: LoadAnswer, first_rows: float | None, row_share: float | None) -> ServedRequest:
    asked, times = answer.arrival.asked, answer.token_s
    admitted = answer.arrival.begins if answer.admitted_s is None else answer.admitted_s
    if first_rows is None:
        raise DeadlineError(f"no stage computed a row of request {answer.arrival.number}")
    return ServedRequest(
        number=answer.arrival.number,
        prompt_tokens=answer.prompt_tokens,
        new_tokens=len(times),
        output=answer.digest,
        asked_s=asked,
        ttft_s=times[0] - asked,
        latency_s=times[-1] - asked,
        queued_s=max(first_rows - asked, 0.0),  # two devices' clocks are matched to a fraction of a ms
        admitted_s=admitted - asked,
        itl_s=tuple(after - before for before, after in pairwise(times)),
        row_share=row_share,
    )


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
