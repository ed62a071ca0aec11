"""The events that a strategy is told of.

When an event happens is told before it (Strategy.now). A row is an index in the session's sequence, in its
current numbering. A route leads to one model's pipeline: TARGET to the target's, 1 and above to the whole
models of a hierarchy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from flowedge.core.arrays import FloatArray, IntArray
from flowedge.protocol.pipeline_ledger import PipelineTrip

TARGET = 0


@dataclass(frozen=True)
class Prefilled:
    """The prompt is cached on all stages and the first token is drawn.

    Attributes:
        context: number of rows of the prompt.
        token: the first drawn token.
        credits: number of segments that may be sent now.
        stages: number of verification stages.
        trips: of the chunks of the prompt, in order.
        routes: of the session beside TARGET, the smallest model's first. Their credits are granted when their
            models have cached the prompt too.
        verify_s: seconds that drawing the token took.
    """

    context: int
    token: int
    credits: int
    stages: int = 1
    trips: tuple[PipelineTrip, ...] = ()
    routes: tuple[int, ...] = ()
    verify_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Layer:
    """The drafter has computed the children of the nodes of a Grow command.

    Attributes:
        growth: number of the growth, which is always the latest growth that was commanded.
        nodes: the f nodes of the command, by the same names.
        tokens: int64 [f, c], the likeliest children of each node, best first, with c at most the commanded
            width. The row of a node with fewer children ends in negative tokens.
        log_probs: float64 [f, c].
        seconds: time of the computation; together: nodes in it, those of other sessions included.
        computed: whether the drafter computed any node; otherwise a grammar left no choice.
        lookup_alone: as in the command.
        extends_prompt: whether the drafter was given rows of the prompt first, which took its time as well.
    """

    growth: int
    nodes: tuple[int, ...]
    tokens: IntArray
    log_probs: FloatArray
    seconds: float = 0.0
    together: int = 0
    computed: bool = True
    lookup_alone: bool = False
    extends_prompt: bool = False


@dataclass(frozen=True)
class Verified:
    """A segment with live rows has returned, and the target's draws were followed through its rows.

    Attributes:
        accepted: rows on the true path, root first.
        token: the first drawn token without a returned row.
        trip: of the segment; of the last segment where several are verified together.
        rows: that were verified, those of other sessions included; verify_s: seconds that it took the draft
            node, 0 where the last stage draws.
        drafting: whether the layer that is asked for is being computed; if not, it has not begun.
    """

    accepted: tuple[int, ...]
    token: int
    trip: PipelineTrip | None = None
    rows: int = 1
    verify_s: float = 0.0
    drafting: bool = False


@dataclass(frozen=True)
class Returned:
    """A segment has returned without a live row.

    Every sent segment of draft rows ends in a Returned, a Verified or a Predicted event, in the order of
    sending on its route; segments that are verified together end in one event.

    Attributes:
        trip: of the segment, on TARGET.
        route: on a route beside TARGET, only a HierarchicalStrategy is told.
    """

    trip: PipelineTrip | None = None
    route: int = TARGET


@dataclass(frozen=True)
class CreditGranted:
    """One more segment may be sent on a route."""

    route: int = TARGET


@dataclass(frozen=True)
class Predicted:
    """A segment with live rows has returned on a route beside TARGET.

    Attributes:
        position: of the segment's first row.
        tokens: the token that the route's model predicts after each row.
    """

    route: int
    position: int
    tokens: tuple[int, ...]


StrategyEvent: TypeAlias = Prefilled | Layer | Verified | Returned | CreditGranted
