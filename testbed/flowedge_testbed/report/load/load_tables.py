"""The tables of load points: speed, times, use of the pipeline, and SpecPipe-DB's published gains."""

from __future__ import annotations

from collections.abc import Sequence

from flowedge.strategies.autoregressive import Autoregressive
from flowedge.strategies.published.specpipe_db import SpecPipeDB
from flowedge_testbed.report.entries import Entry, variant_of
from flowedge_testbed.report.load.load_groups import LoadPlace, load_places, point_label
from flowedge_testbed.report.markdown import number, table, times
from flowedge_testbed.report.paper import lookup

_COLUMNS = ("", "Load", "tokens/s", "time per token")


def paper_gains(entries: Sequence[Entry]) -> str:
    """Return the part of the report with these gains; empty where the methods were not both measured."""
    rows = list(_gains(entries))
    if not rows:
        return ""
    published = lookup("specpipe_db")
    text = (
        f"SpecPipe-DB's paper ({published['section']}) has {published['setting']}. Figure 16 shows the gains "
        "by batch size; the text has their range. What comes closest to vLLM here is plain decoding, whose "
        f"rows the stages batch: each row is *{SpecPipeDB.name}* over *{Autoregressive.name}*, and the time "
        "per token is the other way round, so that more is better in both columns."
    )
    rows.insert(
        0,
        [
            "the paper, over vLLM",
            "",
            _range(published["tokens_per_s_over_vllm"]),
            _range(published["time_per_token_under_vllm"]),
        ],
    )
    return f"{text}\n\n{table(_COLUMNS, rows, left=2)}"


def _gains(entries: Sequence[Entry]) -> list[list[str]]:
    rows: list[list[str]] = []
    for place in load_places(entries):
        for value in place.values:
            here = {entry["method"]: entry for entry in place.entries if entry["at"] == value}
            batched, plain = here.get(SpecPipeDB.name), here.get(Autoregressive.name)
            if batched is not None and plain is not None:
                speed = batched["tokens_per_s"] / plain["tokens_per_s"]
                rows.append([place.label, point_label(batched), times(speed), _slower(plain, batched)])
    return rows


def _slower(plain: Entry, batched: Entry) -> str:
    """Return how many times as long a token takes with plain decoding; medians of the answers."""
    long, short = plain["per_token_p50_ms"], batched["per_token_p50_ms"]
    return times(long / short if long and short else None)


def _range(least_most: Sequence[float]) -> str:
    least, most = least_most
    return f"{least:.2f} to {times(most)}"


_SPEED = (
    "Load", "Method", "tokens/s", "requests/s", "TTFT p50 s", "p99", "answer p50 s", "p99",
    "between tokens p50 ms", "p99", "per token p50 ms", "p99", "queued s", "p99", "slowest",
    "least rows", "refused",
)  # fmt: skip
_USE = (
    "Load", "Method", "rows a forward", "p50", "p99", "sessions a forward", "busy D0", "busy stages",
    "busiest", "D0 alone", "stages idle beside D0", "all idle",
)  # fmt: skip


def speed_table(place: LoadPlace) -> str:
    """Return what the clients saw at each load point, by method."""
    return table(_SPEED, [[*_named(entry), *_speed(entry)] for entry in _by_point(place)], left=2)


def use_table(place: LoadPlace) -> str:
    """Return how the stages' forwards and the devices were used at each load point, by method."""
    return table(_USE, [[*_named(entry), *_use(entry)] for entry in _by_point(place)], left=2)


def _by_point(place: LoadPlace) -> list[Entry]:
    return [entry for value in place.values for entry in place.entries if entry["at"] == value]


def _named(entry: Entry) -> list[str]:
    return [point_label(entry), variant_of(entry).label]


def _speed(entry: Entry) -> list[str]:
    return [
        number(entry["tokens_per_s"]),
        number(entry["requests_per_s"], 3),
        _seconds(entry["ttft_p50_ms"]),
        _seconds(entry["ttft_p99_ms"]),
        _seconds(entry["latency_p50_ms"]),
        _seconds(entry["latency_p99_ms"]),
        number(entry["itl_p50_ms"], 0),
        number(entry["itl_p99_ms"], 0),
        number(entry["per_token_p50_ms"], 0),
        number(entry["per_token_p99_ms"], 0),
        _seconds(entry["queued_mean_ms"]),
        _seconds(entry["queued_p99_ms"]),
        number(entry["slowest_share"]),
        number(entry["least_row_share"]),
        number(entry["refused"], 0),
    ]


def _use(entry: Entry) -> list[str]:
    rows, busy = entry["rows_a_forward"], entry["busy"]
    stages = [share for device, share in busy.items() if device.startswith("v")]
    return [
        number(rows["mean"], 1),
        number(rows["p50"], 0),
        number(rows["p99"], 0),
        number(entry["sessions_a_forward"]),
        _percent(busy["d0"]),
        " / ".join(_percent(share) for share in stages),
        entry["limit"].upper(),
        _percent(entry["draft_node_alone"]),
        _percent(entry["idle_beside_draft_node"]),
        _percent(entry["all_idle"]),
    ]


def _seconds(milliseconds: float | None) -> str:
    return number(None if milliseconds is None else milliseconds / 1e3)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
