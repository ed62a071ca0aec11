"""The interface of a strategy: events in, commands out.

A strategy owns the draft tree and the policy: what to draft, what to send, and when. The draft node owns the
compute thread, the caches and the links, and turns commands into jobs and messages. So a strategy can be run
against a script of events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from flowedge.core.request import VerifierCounts
from flowedge.strategies.commands import Command, Grow, Send
from flowedge.strategies.events import Layer, Predicted, StrategyEvent
from flowedge.strategies.row_bounds import check_draft_rows


class Strategy(ABC):
    """A way of decoding, for one session.

    Attributes:
        computed_alone: whether segments of the session are computed apart from those of other sessions, as in
            the papers, which serve one request at a time.
        max_draft_rows: most draft rows that the strategy ever has sent and neither accepted nor pruned.
        now: time of the present event, of whatever session, in seconds of the driver's steady clock. The
            driver sets it.
    """

    name: ClassVar[str]
    needs_drafter: ClassVar[bool] = True
    computed_alone: ClassVar[bool] = True

    def __init__(self, max_draft_rows: int) -> None:
        """Raise BadRequestError if a strategy may not draft so many rows."""
        self.max_draft_rows = check_draft_rows(self.name, max_draft_rows)
        self.now = 0.0

    @property
    def takes_results(self) -> bool:
        """Whether returned segments are to be verified now; a lock-step strategy says no while it drafts.

        The value changes from no to yes with a Layer event only: no means that the strategy waits for a
            layer.
        """
        return True

    @property
    def rollbacks(self) -> tuple[int, ...]:
        """For each verifying model of a hierarchy, the rollbacks that it caused; the target comes last."""
        return ()

    @property
    def verifiers(self) -> tuple[VerifierCounts, ...]:
        """For each verifying model of a hierarchy, what it did with the tokens that it checked."""
        return ()

    @property
    def plain_tokens_per_s(self) -> float:
        """Speed of decoding without drafts, as measured on this pipeline; 0 where it was not."""
        return 0.0

    @abstractmethod
    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        """Take in an event and return the commands that answer it."""

    def send_step(self) -> Sequence[Send | Grow]:
        """Return what a step of the pipeline, which several sessions share, takes from this session.

        It is asked for after every event of any session. Segments that sessions give at the same time travel
        as one message.
        """
        return ()

    def join_draft(self, nodes: int) -> Grow | None:  # noqa: ARG002
        """Return a layer that is worth drafting in a forward that is made for other sessions, if any.

        It is asked before each such forward, while no layer of the session is wanted.

        Args:
            nodes: of other sessions in the forward, 1 or more.
        """
        return None

    def drop_layer(self, layer: Layer) -> None:  # noqa: B027 (few strategies learn from it)
        """Take note of a layer that has come after its growth was dropped, or was taken back."""

    def opened(self) -> None:  # noqa: B027 (few strategies ask who else is there)
        """Take note that the session is open and its prompt is on its way."""

    def end(self) -> None:  # noqa: B027 (few strategies have something to give back)
        """Take note that the session has ended, however it ended."""


class HierarchicalStrategy(Strategy):
    """A strategy with models between the drafter and the target, each on a route of its own.

    Attributes:
        max_side_routes: most routes that the strategy uses beside TARGET; of more routes it uses the last.
    """

    def __init__(self, max_draft_rows: int, max_side_routes: int) -> None:
        super().__init__(max_draft_rows)
        self.max_side_routes = max_side_routes

    @abstractmethod
    def handle(self, event: StrategyEvent | Predicted) -> Sequence[Command]: ...
