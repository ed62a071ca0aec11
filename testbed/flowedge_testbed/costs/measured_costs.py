"""Times on devices whose profiles have measurements of the emulated model; None where they have not."""

from __future__ import annotations

from collections.abc import Callable

from flowedge.profiling.documents.device import MeasuredDraftTimes, MeasuredTimes
from flowedge_testbed.costs.interpolation import read_off
from flowedge_testbed.emulation.emulation import Emulation

Roofline = Callable[[int], float]  # rows to seconds


def stage_measurements(emulation: Emulation) -> list[MeasuredTimes | None]:
    """What was measured of the model's layers on each stage."""
    return [
        device.measured
        if device.measured is not None and device.measured.holds_for_layers(emulation.model, emulation.quant)
        else None
        for device in emulation.stages
    ]


def head_measurement(emulation: Emulation) -> MeasuredTimes | None:
    """What was measured of the model's LM head on the draft node."""
    found = emulation.draft_node.measured
    return found if found is not None and found.verify_ms and found.holds_for_head(emulation.model) else None


def draft_measurement(emulation: Emulation) -> MeasuredDraftTimes | None:
    """What was measured of the drafter on the draft node."""
    found = emulation.draft_node.measured
    if found is None or not found.holds_for_drafter(emulation.model, emulation.drafter):
        return None
    return found.draft


def measured_layer_s(
    measured: MeasuredTimes, rows: int, cached: int, roofline: Roofline, attention: Roofline
) -> float:
    """Seconds of one layer over `rows` rows with `cached` rows before them.

    Args:
        roofline: the layer's time by rows; attention: the time that a row's attention to so many rows takes.
    """
    beyond = max(0, cached - measured.cached_rows)
    return read_off(measured.layer_ms, rows, roofline) / 1e3 + rows * attention(beyond)


def measured_draft_s(
    times: MeasuredDraftTimes, extended: int, grown: int, nodes: int, roofline: Roofline
) -> float:
    """Seconds of a draft job: `extended` true rows, then a layer of `nodes`, `grown` of them by a forward.

    Args:
        roofline: the head's forward over so many rows.
    """
    extension = read_off(times.extend_ms, extended, roofline) if extended else 0.0
    if not nodes:
        return extension / 1e3
    layer = read_off(times.grow_ms, grown, roofline) if grown else times.root_ms
    return (extension + layer) / 1e3
