"""The interface of a drafter, which proposes the tokens of a draft tree, and its sessions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from flowedge.core.arrays import NO_TOKEN, FloatArray, IntArray, Payload
from flowedge.core.errors import CapacityError
from flowedge.core.sampling import SamplingParams
from flowedge.models.layers.taps import Taps

ROOT = 0  # the name of the root of every growth


@dataclass(frozen=True)
class Frontier:
    """The f nodes of a draft tree whose children are asked for.

    Attributes:
        nodes: the caller's names of the nodes; ROOT for the root.
        parents: the names of the nodes' parents; -1 for the root.
        tokens: the nodes' tokens, whether this drafter proposed them or not.
    """

    nodes: Sequence[int]
    parents: Sequence[int]
    tokens: Sequence[int]


@dataclass(frozen=True, eq=False)
class DraftLayer:
    """The children of each of f frontier nodes, at most as many as were asked for.

    A node may have fewer children than another, or none: its row then ends in NO_TOKEN with a log-probability
    of -inf. Rows are as long as the longest, so that c is 0 where no node has a child.

    Attributes:
        tokens: int64 [f, c], the best token of each row first, no token twice.
        log_probs: float64 [f, c].
    """

    tokens: IntArray
    log_probs: FloatArray


class Drafter(Protocol):
    """Proposes tokens for the open sessions; called from one thread at a time.

    A session's tokens are the prompt and all accepted tokens; the last one is the root of the next tree. Its
    true rows stand for all tokens but the first: row t is token[t + 1] with, for drafters that need features,
    the target's final hidden state of token[t]. The children of a node depend on the true rows and on the
    tokens from the root to the node alone. The nodes of a growth are discarded by the next growth.
    """

    @property
    def needs_features(self) -> bool:
        """Whether `extend` needs features."""

    @property
    def taps(self) -> Taps:
        """The target's layers whose inputs the features contain beside the final hidden state."""

    @property
    def weight_bytes(self) -> int:
        """The bytes of the drafter's weights in memory, without weights shared with the target."""

    @property
    def fingerprint(self) -> str:
        """A digest of everything that the proposals depend on."""

    def session_bytes(self, capacity: int) -> int:
        """The bytes of a session of `capacity` true rows."""

    def open(
        self, session: str, capacity: int, first_token: int, noise: SamplingParams | None = None
    ) -> None:
        """Begin a session of at most `capacity` true rows with its first token.

        With `noise`, whose temperature is above 0, children are ranked by the noise of the target's draws as
        well (see ranking.py); otherwise by their probability.
        """

    def close(self, session: str) -> None:
        """Free a session; an unknown session is ignored."""

    def free_idle(self) -> None:
        """Free memory that is held for later sessions."""

    def extend(self, session: str, features: Payload | None, next_tokens: IntArray) -> None:
        """Add true rows, in order; the last token becomes the root.

        Args:
            features: [n, width] as the last stage returns them: the final hidden state, then the tapped
                hidden states in layer order. Ignored by drafters that need none.
            next_tokens: int64 [n], the token after each feature.

        Raises:
            CapacityError: when the session has no capacity for the rows.
        """

    def rewind(self, session: str, rows: int) -> None:
        """Forget the true rows from `rows` on; the next growth is possible after an extension.

        Raises:
            ValueError: when the session has fewer rows.
        """

    def grow(self, session: str, growth: int, frontier: Frontier, width: int) -> DraftLayer:
        """The best children of each frontier node, at most `width` of each.

        A new number in `growth` begins a new tree at the root. Its first frontier is the root alone; later
        frontiers have nodes whose parents were in an earlier frontier of the growth.

        Raises:
            ValueError: when a node's parent was in no frontier of the growth, or no root is known.
        """


def padded_layer(children: Sequence[Sequence[tuple[int, float]]]) -> DraftLayer:
    """A layer of the (token, log-probability) pairs of each node's children, the best first."""
    longest = max((len(row) for row in children), default=0)
    tokens = np.full((len(children), longest), NO_TOKEN, dtype=np.int64)
    log_probs = np.full((len(children), longest), -np.inf)
    for i, row in enumerate(children):
        for j, (token, log_prob) in enumerate(row):
            tokens[i, j], log_probs[i, j] = token, log_prob
    return DraftLayer(tokens, log_probs)


@dataclass(kw_only=True)
class DrafterSession(ABC):
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


S = TypeVar("S", bound=DrafterSession)


class SessionDrafter(ABC, Generic[S]):
    """The part of a Drafter that handles its sessions."""

    def __init__(self) -> None:
        self._sessions: dict[str, S] = {}

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)

    def free_idle(self) -> None:
        pass

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
