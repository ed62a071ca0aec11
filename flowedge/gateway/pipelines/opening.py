"""Opening what a gateway stands in front of, while it listens already."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from flowedge.gateway.pipelines.served import PipelineEntry
from flowedge.weights.fetch.progress import FetchProgress

_STARTING = "it starts"


@dataclass(frozen=True)
class SetUpProgress:
    """What a device does while its pipeline is set up.

    Attributes:
        transfer: of weights; None while none are fetched.
    """

    message: str
    transfer: FetchProgress | None = None


class DeviceProgress:
    """What each device does while pipelines are set up.

    Attributes:
        devices: by the device's name; replaced as a whole, so that any thread may read it.
    """

    def __init__(self) -> None:
        self.devices: dict[str, SetUpProgress] = {}

    def report(self, device: str, message: str) -> None:
        """Note what a device does."""
        self.devices = {**self.devices, device: SetUpProgress(message)}

    def transferred(self, device: str, transfer: FetchProgress) -> None:
        """Note how far a device is with fetching its weights."""
        before = self.devices.get(device, SetUpProgress(""))
        self.devices = {**self.devices, device: SetUpProgress(before.message, transfer)}

    def clear(self) -> None:
        self.devices = {}

    @property
    def reason(self) -> str:
        """The latest messages as one text, for those who wait."""
        told = "; ".join(f"{name}: {each.message}" for name, each in self.devices.items() if each.message)
        return told or _STARTING


class OpeningThread:
    """Runs a context manager that yields pipelines in a thread of its own, since entering it takes minutes.

    A process that ends does not wait for the thread; agents that the context has started end with it.
    """

    def __init__(self, opening: AbstractContextManager[Sequence[PipelineEntry]]) -> None:
        self._opening = opening
        self._loop = asyncio.get_running_loop()
        self._entered: asyncio.Future[Sequence[PipelineEntry]] = self._loop.create_future()
        self._left: asyncio.Future[None] = self._loop.create_future()
        self._leave = threading.Event()
        threading.Thread(target=self._run, name="flowedge-opening", daemon=True).start()

    async def entries(self) -> Sequence[PipelineEntry]:
        """Return the pipelines when the context was entered; raises what that raises."""
        return await asyncio.shield(self._entered)

    async def close(self) -> None:
        """Leave the context, if it was entered."""
        if self._entered.done() and self._entered.exception() is None:
            self._leave.set()
            await self._left

    def _run(self) -> None:
        try:
            with self._opening as entries:
                self._settle(self._entered, entries)
                self._leave.wait()
            self._settle(self._left, None)
        except BaseException as error:  # noqa: BLE001 (raised where the gateway waits for it)
            self._settle(self._left if self._leave.is_set() else self._entered, error)

    def _settle(self, future: asyncio.Future[Any], value: Any) -> None:
        def set_value() -> None:
            if isinstance(value, BaseException):
                future.set_exception(value)
            else:
                future.set_result(value)

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(set_value)
