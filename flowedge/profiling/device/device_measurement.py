"""Measures this device in an agent's compute thread or in a command; imports torch when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowedge.system.device_kind import device_kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowedge.engine.executors import HeadExecutor
    from flowedge.models.checkpoint.checkpoint import Checkpoint
    from flowedge.profiling.measurement import DeviceMeasurement, MeasureOptions


def measure_here(
    options: MeasureOptions, name: str, tell: Callable[[str], None], kind: str | None = None
) -> DeviceMeasurement:
    """Do what `profiler.profile_device` does, with imports of torch and the draft node's models."""
    from flowedge.models.libraries import import_libraries  # noqa: PLC0415

    import_libraries()
    from flowedge.engine.draft_models import DraftModels  # noqa: PLC0415
    from flowedge.profiling.device.profiler import profile_device  # noqa: PLC0415

    def load_head(checkpoint: Checkpoint) -> HeadExecutor:
        return DraftModels.load(checkpoint, options.drafters, options.dtype).executor

    return profile_device(options, name, kind or device_kind(), load_head, tell)
