"""The interface of a drafter, which proposes the tokens of a draft tree, and its sessions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from flowedge.core.arrays import NO_TOKEN, FloatArray, IntArray, Payload
from flowedge.core.errors import CapacityError
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.suffix_index import SuffixIndex
from flowedge.models.taps import Taps

ROOT = 0  # the name of the root of every growth
Scores: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Frontier:
    """The f nodes of a draft tree whose children are asked for.

    Attributes:
        nodes: the caller's names of the nodes; ROOT for the root.
        parents: the names of the nodes' parents; -1 for the root. A parent may be a node before its children
            in the same frontier; a drafter may then predict less well below it.
        tokens: the nodes' tokens, whether this drafter proposed them or not.
    """

    nodes: Sequence[int]
    parents: Sequence[int]
    tokens: Sequence[int]


@dataclass(frozen=True)
class DraftPrefix:
    """True rows of a session, open or kept, that another session of the drafter begins with.

    Attributes:
        rows: the number of rows, from the first.
    """

    session: str
    rows: int


NO_NODES = Frontier((), (), ())


@dataclass(frozen=True, eq=False)
class GrowRequest:
    """What one session asks a drafter for: to be extended by true rows, then to have a layer grown.

    Attributes:
        growth: number of the tree. A new number begins a new tree at the root, whose first frontier is the
            root alone; parents of later frontiers were in an earlier frontier of the tree, or are before
            their children in the same frontier.
        frontier: the f nodes whose children are asked for. Without nodes no tree begins.
        width: the most children of each node.
        features: [n, width], each row as the last stage returns it: the final hidden state, then the tapped
            hidden states in layer order. Ignored by drafters that need none.
        next_tokens: int64 [n], the token after each row of features, of which the last becomes the root; None
            without true rows.
        added: float32 [f, vocab], added to the logits of the target's tokens before children are chosen,
            which is RULED_OUT where a token is ruled out; None where nothing is added. Lookup heeds what is
            ruled out alone.
        lookup_alone: whether joined drafters ask lookup alone. Features are left out then, and models are
            given the true rows with the session's next request that asks them.
    """

    session: str
    growth: int
    frontier: Frontier
    width: int
    features: Payload | None = None
    next_tokens: IntArray | None = None
    added: Scores | None = None
    lookup_alone: bool = False

    @classmethod
    def extension(cls, session: str, features: Payload | None, next_tokens: IntArray) -> GrowRequest:
        """Return a request for true rows alone."""
        return cls(session, 0, NO_NODES, 0, features, next_tokens)

    @property
    def added_rows(self) -> int:
        """The number of true rows that are added."""
        return 0 if self.next_tokens is None else len(self.next_tokens)


@dataclass(frozen=True, eq=False)
class DraftLayer:
    """The children of each of f frontier nodes, at most as many as were asked for.

    A node may have fewer children than another, or none: its row then ends in NO_TOKEN with a log-probability
    of -inf. Rows are as long as the longest, so that c is 0 where no node has a child.

    Attributes:
        tokens: int64 [f, c], the best token of each row first, no token twice.
        log_probs: float64 [f, c].
        forced: number of children that are all that may follow, for which the drafter was not asked.
        computed: whether the drafter computed any node.
    """

    tokens: IntArray
    log_probs: FloatArray
    forced: int = 0
    computed: bool = True


class Drafter(Protocol):
    """Proposes tokens for the open sessions; called from one thread at a time.

    A session's tokens are the prompt and all accepted tokens; the last one is the root of the next tree. Its
    true rows stand for all tokens but the first: row t is token[t + 1] with, for drafters that need features,
    the target's final hidden state of token[t]. The children of a node depend on the true rows and on the
    tokens from the root to the node alone. The nodes of a growth are discarded by the next growth.
    """

    @property
    def needs_features(self) -> bool:
        """Whether true rows need features."""

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
        self,
        session: str,
        capacity: int,
        first_token: int,
        noise: SamplingParams | None = None,
        prefix: DraftPrefix | None = None,
        earlier: SuffixIndex | None = None,
    ) -> None:
        """Begin a session of at most `capacity` true rows with its first token.

        With `noise`, whose temperature is above 0, children are ranked by the noise of the target's draws as
        well (see ranking.py); otherwise by their probability. With `prefix`, the session begins with a copy
        of these true rows, whose first token must be the same, and proposes what it would if it had been
        extended by them. Lookup also searches `earlier`, answers before this session, which do not change.

        Raises:
            ValueError: when the prefix is of an unknown session, has more rows than that session or than
                `capacity`, or begins with another token.
        """

    def keep(self, session: str) -> None:
        """End a session, but hold its true rows for later prefixes until `close`.

        Its growth is dropped. An unknown session is ignored.
        """

    def close(self, session: str) -> None:
        """Free a session, open or kept; an unknown session is ignored."""

    def free_idle(self) -> None:
        """Free memory that is held for later sessions."""

    def rewind(self, session: str, rows: int) -> None:
        """Forget the true rows from `rows` on; the next growth is possible after an extension.

        Raises:
            ValueError: when the session has fewer rows.
        """

    def check_request(self, request: GrowRequest) -> None:
        """Check that a request can be served; nothing is changed.

        Raises:
            CapacityError: when the session has no capacity for the true rows.
            ValueError: when the session is not open, a node's parent was in no frontier of the growth, the
                root is asked for beside other nodes, no root is known, or features are missing.
        """

    def grow(self, requests: Sequence[GrowRequest]) -> list[DraftLayer]:
        """Extend sessions, and return the best children of each request's frontier nodes.

        A model computes all rows of all sessions in one forward, and ranks the children of all nodes by one
        product with its LM head. All requests are checked before anything is computed. After an error
        during the computation, no session has any of the added rows, so that each request may be repeated.

        Args:
            requests: at most one of each session.

        Raises:
            CapacityError, ValueError: as in `check_request`, for the first request that cannot be served;
                nothing is changed then.
        """


def check_requests(check: Callable[[GrowRequest], None], requests: Sequence[GrowRequest]) -> None:
    """Check the requests of Drafter.grow by a drafter's `check_request`."""
    asked: set[str] = set()
    for request in requests:
        if request.session in asked:
            raise ValueError(f"session {request.session} has two requests; give each session one at a time")
        asked.add(request.session)
        check(request)


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
        first_token, noise: see Drafter.open.
        growth: the number of the current growth; None where its nodes are discarded.
    """

    capacity: int
    first_token: int
    noise: SamplingParams | None
    growth: int | None = None

    @property
    @abstractmethod
    def true_rows(self) -> int:
        """The number of true rows."""

    @property
    @abstractmethod
    def known_nodes(self) -> Collection[int]:
        """The nodes of the current growth that were in a frontier, by name."""

    @abstractmethod
    def truncate(self, rows: int) -> None:
        """Forget the true rows from `rows` on."""

    def discard_growth(self) -> None:
        self.growth = None


S = TypeVar("S", bound=DrafterSession)


class SessionDrafter(ABC, Generic[S]):
    """What drafters have in common: their sessions, by name."""

    def __init__(self) -> None:
        self._sessions: dict[str, S] = {}
        self._kept: dict[str, S] = {}  # sessions that have ended, for prefixes

    def keep(self, session: str) -> None:
        state = self._sessions.pop(session, None)
        if state is not None:
            state.discard_growth()
            self._kept[session] = state

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)
        self._kept.pop(session, None)

    def check_request(self, request: GrowRequest) -> None:
        state = self._sessions.get(request.session)
        if state is None:
            raise ValueError(f"session {request.session} of the drafter is not open; open it first")
        extends = request.next_tokens is not None
        if extends:
            self._with_capacity(request.session, request.added_rows)
        frontier = request.frontier
        if ROOT in frontier.nodes and len(frontier.nodes) > 1:
            raise ValueError(f"session {request.session} asks for the root beside other nodes")
        begins = extends or request.growth != state.growth
        known: Collection[int] = {ROOT} if begins else state.known_nodes
        own: set[int] = set()  # the known are many, and not copied
        missing: set[int] = set()
        for node, parent in zip(frontier.nodes, frontier.parents, strict=True):
            if node != ROOT and parent not in known and parent not in own:
                missing.add(parent)
            own.add(node)
        if missing:
            raise ValueError(
                f"session {request.session}: nodes {sorted(missing)} are not of growth {request.growth}"
            )

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

    def _begin(self, session: str, state: S) -> None:
        """Hold the state of a new session, instead of an earlier session of this name."""
        self._kept.pop(session, None)
        self._sessions[session] = state

    def _with_capacity(self, session: str, rows: int) -> S:
        """The state of a session that has capacity for `rows` more true rows."""
        state = self._sessions[session]
        if state.true_rows + rows > state.capacity:
            raise CapacityError(
                f"session {session} of the drafter holds {state.capacity} rows, not {state.true_rows + rows}"
            )
        return state

    def _source(self, prefix: DraftPrefix | None, capacity: int, first_token: int) -> tuple[S | None, int]:
        """The session that a prefix is copied from, and the rows; None and 0 where no row is copied.

        Raises:
            ValueError: as in Drafter.open.
        """
        if prefix is None:
            return None, 0
        source = self._sessions.get(prefix.session) or self._kept.get(prefix.session)
        if source is None:
            raise ValueError(f"session {prefix.session}, whose rows are to be copied, is not in the drafter")
        if not 0 <= prefix.rows <= min(source.true_rows, capacity):
            raise ValueError(
                f"{prefix.rows} rows of session {prefix.session} cannot be copied: it has {source.true_rows} "
                f"true rows, and the new session takes {capacity}"
            )
        if source.first_token != first_token:
            raise ValueError(
                f"session {prefix.session} begins with token {source.first_token}, "
                f"the new session with {first_token}"
            )
        return (source, prefix.rows) if prefix.rows else (None, 0)
