"""The table of what the rows in flight allow, and what of it each method reached."""

from __future__ import annotations

from collections.abc import Sequence

from flowedge_testbed.report.markdown import number, table
from flowedge_testbed.report.tables import Entry, mean_of, unique
from flowedge_testbed.report.variants import variant_of


def bounds_table(entries: Sequence[Entry]) -> str:
    """Bounds and shares of each method, as means over datasets and points."""
    header = [
        "Model", "Method", "T", "tokens/s", "crossing ms", "rows in flight", "bound", "share",
        "rows alive", "bound (alive)", "share (alive)",
    ]  # fmt: skip
    rows: list[list[str]] = []
    for profile, temperature, variant in unique(
        (e["profile"], e["temperature"], variant_of(e)) for e in entries
    ):
        own = [e for e in variant.of(entries) if (e["profile"], e["temperature"]) == (profile, temperature)]
        rows.append(
            [
                profile,
                variant.label,
                f"{temperature:g}",
                number(mean_of(own, "tokens_per_s")),
                number(mean_of(own, "crossing_ms"), 0),
                number(mean_of(own, "rows_in_flight"), 1),
                number(mean_of(own, "bound_sent_tokens_per_s")),
                _percent(mean_of(own, "share_of_bound_sent")),
                number(mean_of(own, "rows_alive_in_flight"), 1),
                number(mean_of(own, "bound_tokens_per_s")),
                _percent(mean_of(own, "share_of_bound")),
            ]
        )
    return table(header, rows, left=2)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"
