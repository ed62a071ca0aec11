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

NextMessage = Callable[[], Message | None]
Sent = Callable[[Message, int, float, float], None]


class InBandSender:
    """Sends the messages of a machine in order, one at a time, as long as the link takes them.

    What is not sent is still in the machine, where a prune can trim it. Whichever thread has found something
    to send sends it; a second thread leaves its message to the first one.

    Attributes:
        link: None until the link is open.
    """

    def __init__(
        self,
        lock: RLock,
        timing: WorkTiming,
        next_message: NextMessage,
        sent: Sent,
        lost: Callable[[DeviceLostError], None],
    ) -> None:
        """
        lock: the machine's.
        next_message: takes the next message from the machine; called with the lock.
        sent: told of a message that was sent, its bytes, and when the link began and ended to take it; called
            with the lock.
        lost: told that the link is lost; called in any thread.
        """
        self.link: FrameLink | None = None
        self._sending = False
        self._unfinished: Callable[[], bool] | None = None  # concludes a message that the link took in part
        self._lock = lock
        self._timing = timing
        self._next_message = next_message
        self._sent = sent
        self._lost = lost

    @property
    def busy(self) -> bool:
        """Whether a message is on its way to the link, or waits there."""
        return self._sending

    def link_ready(self) -> None:
        """Take note that the link has taken all of the last message, and go on."""
        with self._lock:
            unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            unfinished()
        self.send_all()

    def send_all(self) -> None:
        """Send what the machine has for the link, as far as the link takes it."""
        while self._send_next():
            pass

    def _send_next(self) -> bool:
        """Send the next message; return whether there may be another one to send."""
        with self._lock:
            link = self.link
            if link is None or self._sending or not link.ready:
                return False
            message = self._next_message()
            if message is None:
                return False
            self._sending = True
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
                self.send_all()

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
