"""The commands that a strategy gives; rows and routes are those of the events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Grow:
    """Have the drafter compute the children of `nodes`; node 0 alone is the root and starts a growth.

    A new growth replaces the growth before it, whose layers are dropped unless they are computed already.

    Attributes:
        growth: number of the growth.
        nodes: names of the nodes within the growth; the drafter keeps its scratch by them.
        parents: name of each node's parent, -1 for the root.
        tokens: token of each node.
        width: most children of a node.
        lookup_alone: whether joined drafters ask lookup alone, for this layer and all others of its growth.
    """

    growth: int
    nodes: tuple[int, ...]
    parents: tuple[int, ...]
    tokens: tuple[int, ...]
    width: int
    lookup_alone: bool = False


@dataclass(frozen=True)
class Withdraw:
    """Take back the Grow command before: its layer is not computed, or dropped if its computation has
    begun."""


@dataclass(frozen=True)
class Send:
    """Send draft rows as a segment; they get the next rows in order.

    Attributes:
        parents: parent row of each, -1 for the root; a parent may be a row of this segment.
        more: whether the rows are verified together with the rows of the next segment.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    more: bool = False


@dataclass(frozen=True)
class Append:
    """Send a token as a committed row, which is context from now on."""

    token: int


@dataclass(frozen=True)
class AcceptPath:
    """Make the accepted rows context, keep the sent subtree of `root` and drop all other draft rows.

    Attributes:
        accepted: rows, the former root first.
        root: row of the new root, None when it was not sent.
        ends_round: whether the drawn token has no node, so that a new tree has to be grown.
        express: whether every stage hears of it at once; otherwise it follows the segments in flight, which
            are computed whole.
    """

    accepted: tuple[int, ...]
    root: int | None
    ends_round: bool
    express: bool = True


@dataclass(frozen=True)
class SendTo:
    """Send the model of a route the next tokens of its chain as a segment; the prompt is part of the chain.

    Attributes:
        position: of the first token, directly behind the tokens that the model has.
    """

    route: int
    position: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Keep:
    """Have the model of a route drop its rows from position `end` on.

    Attributes:
        context: position below which the rows are certain; they become context as they return.
    """

    route: int
    end: int
    context: int


@dataclass(frozen=True)
class Emit:
    """Put out tokens, in order; the first of the commands that answer an event."""

    tokens: tuple[int, ...]


Command: TypeAlias = Grow | Withdraw | Send | Append | AcceptPath | SendTo | Keep | Emit
