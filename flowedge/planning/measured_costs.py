"""Times from the measurements in device profiles, which replace the roofline where they apply."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from flowedge.planning.profile.device import MeasuredDraftTimes, MeasuredTimes
from flowedge.planning.profile.model import EagleSize
from flowedge.planning.profile.pipeline import PipelineProfile

TimeOfRows = Callable[[int], float]
"""Seconds that a number of rows takes."""


def stage_measurements(pipeline: PipelineProfile) -> list[MeasuredTimes | None]:
    """Return the measurements of the model's layers on each stage; None for a stage without measurements."""
    return [
        device.measured
        if device.measured is not None and device.measured.holds_for_layers(pipeline.model, pipeline.quant)
        else None
        for device in pipeline.stages
    ]


def head_measurement(pipeline: PipelineProfile) -> MeasuredTimes | None:
    """Return the measurement of the model's LM head on the device that verifies, or None."""
    found = pipeline.verifier.measured
    return found if found is not None and found.verify_ms and found.holds_for_head(pipeline.model) else None


def draft_measurement(pipeline: PipelineProfile) -> MeasuredDraftTimes | None:
    """Return the measurement of the drafter on the draft node, or None."""
    found, model = pipeline.draft_node.measured, pipeline.model
    if found is None or not isinstance(pipeline.drafter, EagleSize):
        return None
    return found.draft if found.holds_for_layers(model, found.quant) and found.holds_for_head(model) else None


def measured_layer_s(
    measured: MeasuredTimes,
    parts: Sequence[tuple[int, int]],
    roofline: TimeOfRows,
    attention: TimeOfRows,
    reading: TimeOfRows,
) -> float:
    """Return the seconds of one layer over the rows of several sessions together.

    The layer's time is that of all rows. The attention in it, which was measured over one cache, is replaced
    by each session's own.

    Args:
        parts: for each session its rows, and the rows cached before them.
        roofline: the layer's seconds by rows.
        attention: seconds of one row's attention, by the number of rows that it sees; reading: seconds of
            reading so many cached rows. Both are used where attention was not measured.
    """
    measured_at, by_rows = measured.cached_rows, measured.attention_ms
    total = sum(rows for rows, _ in parts)
    layer = read_off(measured.layer_ms, total, roofline) / 1e3
    if not by_rows or not measured_at:
        beyond = sum(rows * attention(max(0, cached - measured_at)) for rows, cached in parts)
        every = [cached for _, cached in parts]
        return layer + beyond + reading(sum(every) - max(every))

    def attending(rows: int) -> float:
        return read_off(by_rows, rows, lambda count: count) / 1e3

    own = [attending(rows) for rows, _ in parts]
    longer = sum(
        each * (cached - measured_at) / measured_at for each, (_, cached) in zip(own, parts, strict=True)
    )
    return layer + longer + (sum(own) - attending(total))


def measured_draft_s(
    times: MeasuredDraftTimes, extended: int, grown: int, nodes: int, roofline: TimeOfRows
) -> float:
    """Return the seconds of a draft job: a forward over true rows, then a draft layer.

    Args:
        extended: true rows; nodes: nodes of the draft layer; grown: nodes that need a forward.
        roofline: seconds of the drafter's forward, by rows.
    """
    extension = read_off(times.extend_ms, extended, roofline) if extended else 0.0
    if not nodes:
        return extension / 1e3
    layer = read_off(times.grow_ms, grown, roofline) if grown else times.root_ms
    return (extension + layer) / 1e3


def read_off(table: Mapping[int, float], rows: int, roofline: TimeOfRows) -> float:
    """Return the time of `rows` rows from a table of times by number of rows, in the table's unit.

    Between two measured counts the time is linear. Outside of them it has the shape of `roofline`, scaled to
    meet the nearest measured point.

    Raises:
        ValueError: when the table is empty.
    """
    if not table:
        raise ValueError("a table without a point has no times")
    counts = sorted(table)
    if rows in table:
        return table[rows]
    place = bisect_left(counts, rows)
    if place in (0, len(counts)):
        nearest = counts[min(place, len(counts) - 1)]
        return table[nearest] * roofline(rows) / roofline(nearest)
    below, above = counts[place - 1], counts[place]
    share = (rows - below) / (above - below)
    return table[below] + share * (table[above] - table[below])
