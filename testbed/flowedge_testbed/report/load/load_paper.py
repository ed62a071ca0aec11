"""SpecPipe-DB's published gains over vLLM, beside its gains here over plain decoding in batches."""

from __future__ import annotations

from collections.abc import Sequence

from flowedge.strategies.autoregressive import Autoregressive
from flowedge.strategies.published.specpipe_db import SpecPipeDB
from flowedge_testbed.report.entries import Entry
from flowedge_testbed.report.load.load_groups import load_places, point_label
from flowedge_testbed.report.markdown import table, times
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
