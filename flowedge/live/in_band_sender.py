"""Sending a machine's in-band messages on one link, in the thread that has something to send."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import RLock

from flowedge.core.errors import DeviceLostError
from flowedge.core.messages import Message
from flowedge.live.transport.frame_link import FrameLink
from flowedge.live.work_timing import WorkTiming

Sent = Callable[[Message, int, float, float], None]


class InBandSender:
    """Sends the messages of a machine in order, one at a time, as long as the link takes them.

    What is not sent is still in the machine, where a prune can trim it. Whichever thread has taken a message
    out of the machine sends it; meanwhile `ready` is false, so that no other thread takes the next one.

    Attributes:
        link: None until the link is open.
    """

    def __init__(
        self,
        lock: RLock,
        timing: WorkTiming,
        sent: Sent,
        lost: Callable[[DeviceLostError], None],
        go_on: Callable[[], None],
    ) -> None:
        """
        lock: the machine's.
        sent: called with a message that was sent, its bytes, and when the link began and ended to take it;
            with the lock.
        lost: called when the link is lost, in any thread.
        go_on: called in any thread, without the lock, when the link takes a message again.
        """
        self.link: FrameLink | None = None
        self._sending = False
        self._unfinished: Callable[[], bool] | None = None  # concludes a message that the link took in part
        self._lock = lock
        self._timing = timing
        self._sent = sent
        self._lost = lost
        self._go_on = go_on

    @property
    def busy(self) -> bool:
        """Whether a message is on its way to the link, or waits there."""
        return self._sending

    @property
    def ready(self) -> bool:
        """Whether the link takes a message now; read with the lock."""
        return self.link is not None and not self._sending and self.link.ready

    def claim(self) -> None:
        """Take note, with the lock, that a message has been taken out of the machine, for `send`."""
        self._sending = True

    def link_ready(self) -> None:
        """Take note that the link has taken all of the last message, and go on."""
        with self._lock:
            unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            unfinished()
        self._go_on()

    def send(self, message: Message) -> bool:
        """Send a message, after `claim` and without the lock; return whether the link takes another now."""
        link = self.link
        assert link is not None, "as it was ready"
        started = time.monotonic()

        def conclude(outcome: int | DeviceLostError) -> bool:
            with self._lock:
                self._sending = False
                if not isinstance(outcome, DeviceLostError):
                    self._sent(message, outcome, started, time.monotonic())
                    return True
            self._lost(outcome)
            return False

        def conclude_later(outcome: int | DeviceLostError) -> None:
            if conclude(outcome):
                self._go_on()

        try:
            size = self._timing.send(link, message, conclude_later)
        except DeviceLostError as error:
            return conclude(error)
        except BaseException:
            self._sending = False
            raise
        if size is None:
            return False
        with self._lock:
            if not link.ready:
                self._unfinished = partial(conclude, size)
                return False
        return conclude(size)
