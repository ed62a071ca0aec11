"""How fast this device computes: measured in the compute thread, and stored for models by their sizes."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flowedge.agent.agent_config import AgentConfig
from flowedge.agent.device_info import DeviceInfo
from flowedge.core.errors import ProtocolError
from flowedge.device.compute import processor_name
from flowedge.device.state_dir import state_dir
from flowedge.live.compute_thread import ComputeThread
from flowedge.planning.measuring.measure import measure_here
from flowedge.planning.profile.measurement import DeviceMeasurement, MeasureOptions, read_measurement
from flowedge.version import VERSION

MEASURE_S = 1200.0  # for all timings of a device; a small board takes minutes
MOST = 64  # measurements, of which the oldest is dropped for the next one


class StoredMeasurements:
    """Measurements in a directory, by what was measured, with which libraries and on which processor."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, options: MeasureOptions) -> DeviceMeasurement | None:
        """Return the measurement by these options; None if there is none that holds for this device."""
        path = self._path(options)
        try:
            return read_measurement(path.read_text(), str(path))
        except (OSError, ProtocolError):  # of another version, or damaged; it is measured again
            return None

    def put(self, options: MeasureOptions, found: DeviceMeasurement) -> None:
        """Store a measurement. Where nothing can be written, it is measured again the next time."""
        path = self._path(options)
        with contextlib.suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_text(found.model_dump_json())
            fresh.replace(path)
            stored = sorted(self._directory.glob("*.json"), key=lambda each: each.stat().st_mtime)
            for old in stored[:-MOST]:
                old.unlink(missing_ok=True)

    def _path(self, options: MeasureOptions) -> Path:
        known = (options.model_dump_json(), VERSION, version("torch"), processor_name())
        return self._directory / f"{hashlib.sha256(repr(known).encode()).hexdigest()[:32]}.json"


class DeviceSpeed:
    """Measures this device."""

    def __init__(self, info: DeviceInfo, config: AgentConfig, compute: ComputeThread) -> None:
        self._info = info
        self._config = config
        self._compute = compute

    def options(self, **asked: Any) -> MeasureOptions:
        """Return options for this device's compute. Raises BadRequestError when they are wrong."""
        own = self._config.agent
        compute = self._info.compute.choose(asked["quant"])
        return MeasureOptions(
            **asked, compute=compute.device, threads=own.torch_threads, cuda_graphs=own.cuda_graphs
        )

    def like(self, options: MeasureOptions) -> MeasureOptions:
        """Return the same options for this device's compute."""
        asked = options.model_dump(exclude={"compute", "threads", "cuda_graphs", "sizes"})
        return self.options(**asked, sizes=options.sizes)

    def stored(self, options: MeasureOptions) -> DeviceMeasurement | None:
        """Return what was measured before; None if nothing was, or if no sizes are given."""
        return None if options.sizes is None else self._store.get(options)

    async def measure(self, options: MeasureOptions, tell: Callable[[str], None]) -> DeviceMeasurement:
        """Measure the device, and store what holds for given sizes.

        tell: called with what is measured next, in the compute thread; an exception of it ends the
            measurement.

        Raises what `measure_here` raises, and DeadlineError when it takes too long.
        """
        info = self._info
        found, _ = await self._compute.run(
            lambda: measure_here(options, info.name, tell, info.kind),
            MEASURE_S + self._config.deadlines.load_s,  # only at the end of a timing is the deadline seen
        )
        if options.sizes is not None:
            self._store.put(options, found)
        return found

    @property
    def _store(self) -> StoredMeasurements:
        return StoredMeasurements(state_dir() / "measured")
