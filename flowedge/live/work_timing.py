"""How the work of a live driver is timed: its jobs, the messages it sends and the messages that reach it.

The product works in real time. This is the one place where a bench or a test may have it work otherwise, such
as in the time of another device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

from flowedge.core.errors import DeviceLostError
from flowedge.core.messages import Message
from flowedge.engine.jobs import DraftJob, StageJob
from flowedge.live.compute_thread import ComputeThread, Outcome
from flowedge.live.transport.frame_link import FrameLink
from flowedge.protocol.link_kind import LinkKind

T = TypeVar("T")


class WorkTiming(Protocol):
    """Carries out the work of one live driver. Its methods may be called in any thread and do not wait.

    Attributes:
        row_bytes: bytes that each row on a link to the device may have, if that is more than its own size.
    """

    row_bytes: int

    def run_job(
        self, job: StageJob | DraftJob, work: Callable[[], T], conclude: Callable[[Outcome[T]], None]
    ) -> None:
        """Have `work`, which carries out `job`, run in the compute thread.

        Args:
            conclude: called once with the outcome and the time the job took; the result is None for a forward
                that was aborted.
        """

    def send(
        self, link: FrameLink, message: Message, sent: Callable[[int | DeviceLostError], None]
    ) -> int | None:
        """Send a message; return its size in bytes, or None if it leaves later.

        Args:
            sent: called with the size when a message that left later is out, or with the loss of the link.

        Raises:
            DeviceLostError: when the link is lost.
        """

    def arrive(self, kind: LinkKind, departed: float, deliver: Callable[[], None]) -> None:
        """Have a message that was read from a link delivered. Messages of one kind of link keep their order.

        Args:
            departed: when the message was due to leave its sender, on time.monotonic(); 0 if unknown.
            deliver: hands the message to the driver.
        """

    def express_delay_s(self, message: Message) -> float | None:
        """Return the seconds by which an express message to one stage leaves late; None if it is lost."""

    def changed(self) -> None:
        """Take note that the driver's machine has taken in a message or a result."""

    def stop(self) -> None:
        """Deliver no message any more."""


class RealTime:
    """A WorkTiming without any delay: the product's."""

    row_bytes = 0

    def __init__(self, compute: ComputeThread) -> None:
        self._compute = compute

    def run_job(
        self,
        job: StageJob | DraftJob,  # noqa: ARG002
        work: Callable[[], T],
        conclude: Callable[[Outcome[T]], None],
    ) -> None:
        self._compute.submit(work, conclude)

    def send(
        self,
        link: FrameLink,
        message: Message,
        sent: Callable[[int | DeviceLostError], None],  # noqa: ARG002
    ) -> int | None:
        return link.send(message)

    def arrive(self, kind: LinkKind, departed: float, deliver: Callable[[], None]) -> None:  # noqa: ARG002
        deliver()

    def express_delay_s(self, message: Message) -> float | None:  # noqa: ARG002
        return 0.0

    def changed(self) -> None:
        return

    def stop(self) -> None:
        return


MakeTiming: TypeAlias = Callable[[ComputeThread], WorkTiming]
"""Makes the timing of a driver whose jobs run in a compute thread."""
