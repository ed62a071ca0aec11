"""The statistics of one request, as measured by the draft node that served it. Imports no numpy."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import pairwise

from flowedge.core.pipeline_config import VerificationPlace
from flowedge.core.request import DecodeCounters, Finished, Request, StageReport


@dataclass(frozen=True)
class StageUse:
    """The use of one device: its report, and the share of the request's time for which it computed."""

    report: StageReport
    use: float  # 0 to 1: busy seconds over the seconds from the request's arrival to its end, without queue_s


@dataclass(frozen=True)
class RequestStatistics:
    """The statistics of one request; times in seconds.

    Attributes:
        queue_s: for which the request waited to be opened.
        ttft_s: from the arrival of the request to its first token, without queue_s.
        decode_s: from the first token to the last; tokens_per_s: tokens after the first over that time.
        total_s: from the arrival of the request until every stage had closed the session.
        itl_s: time between tokens, one fewer than tokens; tokens that come out together are 0 apart.
        draft_node, stages: what each device did, stages in pipeline order.
        link_bytes: bytes sent on each in-band link, by its sender, and on all express links as "express".
        verification: where the tokens were drawn (core/pipeline_config.py).
        middles: what the devices of the models between drafter and target did, the smallest model's first.
        recoveries: how often a pipeline was lost and the answer went on with another. Times and tokens are of
            the whole answer; counters and the devices' work are of the last pipeline.
    """

    session: str
    strategy: str
    seed: int
    finish_reason: str
    prompt_tokens: int
    new_tokens: int
    ttft_s: float
    decode_s: float
    total_s: float
    tokens_per_s: float
    itl_s: tuple[float, ...]
    counters: DecodeCounters
    draft_node: StageUse
    stages: tuple[StageUse, ...]
    link_bytes: dict[str, int]
    verification: VerificationPlace
    middles: tuple[StageUse, ...] = ()
    queue_s: float = 0.0
    recoveries: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class RequestClock:
    """Collects the times of one request, in seconds of one monotonic clock.

    Attributes:
        queue_s: for which the request waited to be opened; recoveries: as in RequestStatistics.
    """

    def __init__(self, started: float) -> None:
        self.queue_s = 0.0
        self.recoveries = 0
        self._started = started
        self._times: list[float] = []

    @property
    def num_tokens(self) -> int:
        return len(self._times)

    @property
    def ttft_s(self) -> float | None:
        """The seconds from the request's arrival to its first token, without its wait; None before that."""
        return self._times[0] - self._started - self.queue_s if self._times else None

    def count(self, tokens: int, now: float) -> float:
        """Record that `tokens` tokens were put out.

        Returns the seconds since the tokens before them; of the first tokens, ttft_s.
        """
        latest = self._times[-1] if self._times else self._started + self.queue_s
        self._times.extend([now] * tokens)
        return now - latest

    def statistics(
        self, now: float, request: Request, finished: Finished, express_bytes: int
    ) -> RequestStatistics:
        times = self._times
        total_s = now - self._started
        decode_s = times[-1] - times[0] if times else 0.0
        reports = [*finished.reports, *finished.side_reports]
        served_s = total_s - self.queue_s
        use = tuple(
            StageUse(report, min(report.busy_s / served_s, 1.0) if served_s > 0 else 0.0)
            for report in reports
        )
        num_stages = len(finished.reports) - 1
        return RequestStatistics(
            session=request.session,
            strategy=request.strategy,
            seed=request.sampling.seed,
            finish_reason=finished.reason,
            prompt_tokens=len(request.prompt),
            new_tokens=len(times),
            ttft_s=served_s if self.ttft_s is None else self.ttft_s,
            decode_s=decode_s,
            total_s=total_s,
            tokens_per_s=(len(times) - 1) / decode_s if decode_s > 0 else 0.0,
            itl_s=tuple(after - before for before, after in pairwise(times)),
            counters=finished.counters,
            draft_node=use[0],
            stages=use[1 : 1 + num_stages],
            verification=finished.verification,
            link_bytes={report.device: report.bytes_sent for report in reports} | {"express": express_bytes},
            middles=use[1 + num_stages :],
            queue_s=self.queue_s,
            recoveries=self.recoveries,
        )
