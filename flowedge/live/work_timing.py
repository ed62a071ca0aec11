"""How the work of a live driver is timed: its jobs, the messages it sends and the messages that reach it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from flowedge.core.messages import Message
from flowedge.engine.jobs import DraftJob, StageJob
from flowedge.live.compute_thread import ComputeThread, Span
from flowedge.live.transport.link import LinkKind, OutLink

T = TypeVar("T")


class WorkTiming(Protocol):
    """Carries out the work of one live driver. Its methods are called on the event loop.

    Attributes:
        row_bytes: bytes to which each row that the device sends on is padded; 0 for no padding.
    """

    row_bytes: int

    async def run_job(self, job: StageJob | DraftJob, work: Callable[[], T]) -> tuple[T | None, Span]:
        """Run `work`, which carries out `job`, in the compute thread.

        Returns the result of `work`, None for a forward that was aborted, and the time the job took. An
        exception of `work` is raised as by ComputeThread.run.
        """

    async def send(self, link: OutLink, message: Message) -> int:
        """Send a message and return its size in bytes as soon as the link can take the next message.

        Raises:
            DeviceLostError: when the link is lost.
        """

    def arrive(self, kind: LinkKind, departed: float, deliver: Callable[[], None]) -> None:
        """Have a message that was read from a link delivered. Messages of one kind of link keep their order.

        Args:
            departed: when the message was due to leave its sender, on time.monotonic(); 0 if unknown.
            deliver: hands the message to the driver.
        """

    def changed(self) -> None:
        """Take note that the driver's machine has taken in a message or a result."""

    def stop(self) -> None:
        """Deliver no message any more."""


class RealTime:
    """A WorkTiming without any delay: the product's."""

    row_bytes = 0

    def __init__(self, compute: ComputeThread) -> None:
        self._compute = compute

    async def run_job(self, job: StageJob | DraftJob, work: Callable[[], T]) -> tuple[T | None, Span]:  # noqa: ARG002
        return await self._compute.run(work)

    async def send(self, link: OutLink, message: Message) -> int:
        return await link.send(message)

    def arrive(self, kind: LinkKind, departed: float, deliver: Callable[[], None]) -> None:  # noqa: ARG002
        deliver()

    def changed(self) -> None:
        return

    def stop(self) -> None:
        return
