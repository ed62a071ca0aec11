"""The interface by which a driver is told what the sessions of a draft node put out."""

from __future__ import annotations

from collections.abc import Sequence


class SessionObserver:
    """An observer of the sessions of a draft node. This class ignores all calls.

    A method is called before the messages and outputs that follow from what it tells are taken from the
    machine. It must not fail.
    """

    def put_out(self, session: str, tokens: Sequence[int], now: float) -> None:
        """Take note that a session has put out tokens.

        now: time of the event, in seconds of the driver's clock.
        """


UNOBSERVED_SESSIONS = SessionObserver()
