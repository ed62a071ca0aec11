"""Faults of express messages (see WorkTiming.express_delay_s), by which the in-band copies are tested."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Protocol

from flowedge.core.errors import BadRequestError
from flowedge.core.messages import Message

MAX_DELAY_S = 60.0


class ExpressFault(Protocol):
    """Loses or delays express messages, so that tests can show that the output does not depend on them."""

    def delay_s(self, message: Message) -> float | None:
        """Return the seconds by which a message to one stage is late; None if it is lost."""


class Cut:
    """Loses every express message."""

    def delay_s(self, message: Message) -> float | None:  # noqa: ARG002
        return None


@dataclass(frozen=True)
class Delay:
    """Delays every express message by the same time, so that their order is kept."""

    seconds: float

    def delay_s(self, message: Message) -> float | None:  # noqa: ARG002
        return self.seconds


@dataclass(frozen=True)
class Reorder:
    """Delays each express message by a random time of up to `seconds`."""

    seconds: float
    _random: random.Random = field(default_factory=lambda: random.Random(0), compare=False)

    def delay_s(self, message: Message) -> float | None:  # noqa: ARG002
        return self._random.uniform(0, self.seconds)


def parse_express_fault(text: str) -> ExpressFault | None:
    """Return the fault that "cut", "delay:0.05" or "reorder:0.05" names; None for an empty text.

    Raises:
        BadRequestError: for any other text, and for a time outside 0 to 60 seconds.
    """
    if not text:
        return None
    kind, _, seconds = text.partition(":")
    try:
        delay_s = float(seconds or 0)
    except ValueError:
        delay_s = -1.0
    if 0 <= delay_s <= MAX_DELAY_S:
        match kind:
            case "cut":
                return Cut()
            case "delay":
                return Delay(delay_s)
            case "reorder":
                return Reorder(delay_s)
    raise BadRequestError(
        f"the express fault is {text!r}; it must be cut, delay:SECONDS or reorder:SECONDS, at most "
        f"{MAX_DELAY_S:g} seconds"
    )
