"""The interface of a decoding strategy: events in, commands out.

A strategy owns the draft tree and the policy: what to draft, what to send and when. The draft node owns the
compute lane, the caches and the wire, and turns commands into jobs and messages. A strategy can therefore be
run against a script of events. Rows are indices in the session's sequence, in its current numbering.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from flowedge.core.sampling import FloatArray, IntArray

TARGET = 0  # the route to the target's pipeline; other routes lead to whole models, numbered from 1


@dataclass(frozen=True)
class PipelineTrip:
    """A segment of so many rows has crossed the pipeline; `seconds` from when D0 had it to its return."""

    rows: int
    seconds: float


@dataclass(frozen=True)
class Prefilled:
    """The prompt is cached everywhere and the first token is drawn.

    Attributes:
        context: rows of the prompt; token: the first drawn token; credits: segments that may be sent now.
        stages: verification stages of the pipeline.
        crossings: what the chunks of the prompt took, in order.
        routes: the session's other routes, the smallest model's first; their credits are granted when they
            have the prompt as well.
    """

    context: int
    token: int
    credits: int
    stages: int = 1
    crossings: tuple[PipelineTrip, ...] = ()
    routes: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of a draft tree has been computed.

    Attributes:
        growth: number of the growth it belongs to, always the latest one asked for.
        nodes: the frontier nodes, as named in the Grow command.
        tokens: int64 [f, c] likeliest children of each, best first, c at most the width asked for;
        log_probs: float64 [f, c]. Where a node has fewer than c, its row ends in tokens below 0.
        seconds: what computing it took.
    """

    growth: int
    nodes: tuple[int, ...]
    tokens: IntArray
    log_probs: FloatArray
    seconds: float = 0.0


@dataclass(frozen=True)
class Verified:
    """A segment with live rows has come back and the target's draws were followed through it.

    Attributes:
        accepted: rows on the true path, root first; token: the first drawn token without a returned row.
        crossing: what the segment took, the last of those that are verified together.
    """

    accepted: tuple[int, ...]
    token: int
    crossing: PipelineTrip | None = None


@dataclass(frozen=True)
class Returned:
    """A segment has come back without a live row.

    Every segment of draft rows ends in either this or Verified, in the order they were sent; segments that
    are verified together end in one of them.
    """


@dataclass(frozen=True)
class CreditGranted:
    """One more segment may be sent on a route."""

    route: int = TARGET


@dataclass(frozen=True)
class Predicted:
    """A segment has come back from the model of a route beside the target's, with live rows.

    Attributes:
        position: of the first row; tokens: what the model predicts after each row.
    """

    route: int
    position: int
    tokens: tuple[int, ...]


StrategyEvent: TypeAlias = Prefilled | Layer | Verified | Returned | CreditGranted


@dataclass(frozen=True)
class Grow:
    """Compute children of `nodes`; node 0 alone is the root and starts a growth.

    A new growth takes the place of the one before it, whose layers that are not computed yet are dropped.
    """

    growth: int
    nodes: tuple[int, ...]
    parents: tuple[int, ...]
    tokens: tuple[int, ...]
    width: int


@dataclass(frozen=True)
class Cancel:
    """Drop what is left of the current growth."""


@dataclass(frozen=True)
class Send:
    """Send draft rows as one segment; they get the next rows in order.

    Attributes:
        parents: parent row of each, -1 for the root; it may be a row of this segment.
        more: its rows are verified together with those of the segment that is sent next.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    more: bool = False


@dataclass(frozen=True)
class Append:
    """Send one token as a committed row, context from now on."""

    token: int


@dataclass(frozen=True)
class AcceptPath:
    """Keep the accepted rows, as context, and the sent subtree of `root`; everything else dies.

    Attributes:
        accepted: rows, root first; root: row of the new root, None when it was not sent.
        ends_round: the drawn token has no node, so that a fresh tree has to be grown.
    """

    accepted: tuple[int, ...]
    root: int | None
    ends_round: bool


@dataclass(frozen=True)
class SendTo:
    """Send further tokens of the one chain that the model of a route holds, prompt included, as a segment.

    Attributes:
        position: of the first token, which follows the last one that the model was sent and keeps.
    """

    route: int
    position: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Keep:
    """Have the model of a route forget its rows from position `end` on.

    Attributes:
        context: its rows before this position are certain: they become context, as far as they have come
            back.
    """

    route: int
    end: int
    context: int


@dataclass(frozen=True)
class Emit:
    """Tokens that are certain, in order; comes first among the commands of an event."""

    tokens: tuple[int, ...]


Command: TypeAlias = Grow | Cancel | Send | Append | AcceptPath | SendTo | Keep | Emit


class Strategy(ABC):
    """One way of decoding one session."""

    name: ClassVar[str]
    needs_drafter: ClassVar[bool] = True

    @property
    @abstractmethod
    def max_draft_rows(self) -> int:
        """The most draft rows the strategy ever has sent and not yet accepted or pruned."""

    @property
    def takes_results(self) -> bool:
        """Whether what comes back is to be verified now; a lock-step method says no while it drafts.

        It may change with a Layer event only, so that a strategy that says no is waiting for one.
        """
        return True

    @property
    def rollbacks(self) -> tuple[int, ...]:
        """How often each verifier of a hierarchy had all models before it roll back, the target's last."""
        return ()

    @abstractmethod
    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        """Take in an event and say what to do."""


class HierarchicalStrategy(Strategy):
    """A strategy with models between the drafter and the target, each in a pipeline of its own."""

    @property
    @abstractmethod
    def max_side_routes(self) -> int:
        """The most routes that it uses beside the target's; where there are more, the last of them."""

    @abstractmethod
    def handle(self, event: StrategyEvent | Predicted) -> Sequence[Command]:
        """Take in an event and say what to do."""
