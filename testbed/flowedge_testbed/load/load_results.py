"""The entries of results.json for a scenario with load: a load point by a method, on a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from flowedge_testbed.load.load_plan import LoadCell
from flowedge_testbed.load.load_record import LoadRecord
from flowedge_testbed.load.pipeline_use import mean_of_counts, quantile_of
from flowedge_testbed.results import method_and_place, quantile, rounded


@dataclass(frozen=True)
class Fairness:
    """How the sessions of a load point were treated; 1 is an equal treatment.

    Attributes:
        speed: tokens/s of the slowest answer over the mean of all; None if no answer has a second token.
        rows: the least share of stage rows (see row_shares); None if no session decoded.
    """

    speed: float | None
    rows: float | None

    @classmethod
    def of(cls, record: LoadRecord) -> Fairness:
        speeds = [request.tokens_per_s for request in record.requests]
        known = [speed for speed in speeds if speed is not None]
        shares = [request.row_share for request in record.requests if request.row_share is not None]
        return cls(min(known) / fmean(known) if known else None, min(shares, default=None))


def load_entries(cells: Sequence[LoadCell], records: Mapping[str, LoadRecord]) -> list[dict[str, Any]]:
    """Return an object for each load point of a method; `records` by key of a run."""
    return [rounded(_entry(cell, records[cell.load.key])) for cell in cells]


def differing_answers(cells: Sequence[LoadCell], records: Mapping[str, LoadRecord]) -> list[str]:
    """Return the methods that answer a request otherwise than the first method did.

    There are none, since every method is lossless, whatever else the pipeline computes.
    """
    first: dict[tuple[float, int], str] = {}
    differing: set[str] = set()
    for cell in cells:
        for request in records[cell.load.key].requests:
            known = first.setdefault((cell.temperature, request.number), request.output)
            if known != request.output:
                differing.add(cell.method)
    return sorted(differing)


def _entry(cell: LoadCell, record: LoadRecord) -> dict[str, Any]:
    load, requests, use = cell.load, record.requests, record.use
    per_token = [
        request.decode_s / (request.new_tokens - 1) for request in requests if request.new_tokens > 1
    ]
    fairness = Fairness.of(record)
    return {
        **method_and_place(cell.method, cell.options, cell.case),
        "temperature": cell.temperature,
        "noise": cell.noise,
        "load": load.point.kind,
        "at": load.point.value,
        "static_batches": cell.static_batches,
        "requests": len(requests),
        "refused": record.refused,
        "tokens": record.new_tokens,
        "window_s": record.window_s,
        "tokens_per_s": record.window_tokens / record.window_s,
        "requests_per_s": record.window_requests / record.window_s,
        **dict(_quantiles("ttft", [request.ttft_s for request in requests])),
        **dict(_quantiles("latency", [request.latency_s for request in requests])),
        **dict(_quantiles("itl", [gap for request in requests for gap in request.itl_s])),
        **dict(_quantiles("per_token", per_token)),
        "per_token_mean_ms": 1e3 * fmean(per_token) if per_token else None,
        **dict(_quantiles("queued", [request.queued_s for request in requests])),
        "queued_mean_ms": 1e3 * fmean(request.queued_s for request in requests),
        "admitted_mean_ms": 1e3 * fmean(request.admitted_s for request in requests),
        "slowest_share": fairness.speed,
        "least_row_share": fairness.rows,
        "rows_a_forward": {
            "mean": mean_of_counts(use.rows),
            "p50": quantile_of(use.rows, 0.5),
            "p99": quantile_of(use.rows, 0.99),
        },
        "sessions_a_forward": mean_of_counts(use.sessions),
        "busy": dict(use.busy),
        "limit": use.limit,
        "draft_node_alone": use.draft_node_alone,
        "idle_beside_draft_node": use.idle_beside_draft_node,
        "all_idle": use.all_idle,
    }


def _quantiles(name: str, seconds: Sequence[float]) -> Iterator[tuple[str, float | None]]:
    """Yield the median and the 99th percentile in milliseconds; None if there is no value."""
    ascending = sorted(seconds)
    for part, share in (("p50", 0.5), ("p99", 0.99)):
        yield f"{name}_{part}_ms", 1e3 * quantile(ascending, share) if ascending else None
