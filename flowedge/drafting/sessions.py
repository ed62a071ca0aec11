"""The open sessions of a drafter, which every kind of drafter keeps in the same way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from flowedge.core.errors import CapacityError
from flowedge.core.sampling import SamplingParams


@dataclass(kw_only=True)
class DraftSession(ABC):
    """A drafter's state of one session.

    Attributes:
        capacity: the most true rows.
        noise: see Drafter.open.
        growth: the number of the current growth; None where its nodes are discarded.
    """

    capacity: int
    noise: SamplingParams | None
    growth: int | None = None

    @property
    @abstractmethod
    def true_rows(self) -> int:
        """The number of true rows."""

    @abstractmethod
    def truncate(self, rows: int) -> None:
        """Forget the true rows from `rows` on."""

    def discard_growth(self) -> None:
        self.growth = None


S = TypeVar("S", bound=DraftSession)


class SessionDrafter(ABC, Generic[S]):
    """The part of a Drafter that handles its sessions."""

    def __init__(self) -> None:
        self._sessions: dict[str, S] = {}

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)

    def rewind(self, session: str, rows: int) -> None:
        state = self._sessions[session]
        if not 0 <= rows <= state.true_rows:
            raise ValueError(
                f"session {session} has {state.true_rows} true rows and cannot go back to {rows}"
            )
        state.discard_growth()
        state.truncate(rows)

    def _with_capacity(self, session: str, rows: int) -> S:
        """The state of a session that has capacity for `rows` more true rows."""
        state = self._sessions[session]
        if state.true_rows + rows > state.capacity:
            raise CapacityError(
                f"session {session} of the drafter holds {state.capacity} rows, not {state.true_rows + rows}"
            )
        return state
