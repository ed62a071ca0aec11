"""Options of the strategies; each class says which of its defaults are a paper's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from flowedge.core.errors import BadRequestError
from flowedge.strategies.row_bounds import MAX_DRAFT_ROWS

_Settings = TypeVar("_Settings", bound="Settings")
_T = TypeVar("_T", int, float)
MOST_COUNT = MAX_DRAFT_ROWS  # of a whole number without a bound of its own
MOST_REAL = 1e9  # of a real number
MAX_NODES = 1 << 12  # that a drafter proposes for one tree; the event loop adds each to the tree
_MOST = "most"
_LEAST = "least"


def at_most(most: int, default: _T) -> _T:
    """Return an option's default, with the most that a request may ask for."""
    made: Any = field(default=default, metadata={_MOST: most})
    return made  # type: ignore[no-any-return]


def switch(default: bool) -> int:
    """Return the default of an option that is 1 (on) or 0 (off)."""
    made: Any = field(default=int(default), metadata={_LEAST: 0, _MOST: 1})
    return made  # type: ignore[no-any-return]


def from_0_to(most: int, default: int) -> int:
    """Return the default of a whole number that may be 0, with the most that a request may ask for."""
    made: Any = field(default=default, metadata={_MOST: most, _LEAST: 0})
    return made  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Settings:
    """Options by name: whole numbers of 1 or more, and real numbers of 0 or more, as their defaults are.

    A switch is 0 or 1. A whole number may be 0 if its default is given by `from_0_to`.

    Every option has a bound, because requests of clients set it.

    Raises:
        BadRequestError: when a value is out of range.
    """

    above_zero: ClassVar[tuple[str, ...]] = ()  # names of real numbers that may not be 0

    def __post_init__(self) -> None:
        for option in fields(self):
            value, counts = getattr(self, option.name), _is_count(option.default)
            least = option.metadata.get(_LEAST, int(counts))
            most = option.metadata.get(_MOST, MOST_COUNT if counts else MOST_REAL)
            if value == 0 and option.name in self.above_zero:
                raise BadRequestError(f"strategy option {option.name} is 0; it must be above 0")
            if not least <= value <= most:  # which no NaN is
                raise BadRequestError(
                    f"strategy option {option.name} is {value}; it must be {least} or more, {most:g} at most"
                )
        if self.nodes > MAX_NODES:
            raise BadRequestError(
                f"with these strategy options, {self.nodes} tokens would be proposed for one tree; at most "
                f"{MAX_NODES} are allowed"
            )

    @property
    def nodes(self) -> int:
        """Most tokens that the drafter proposes for one tree, each of which becomes a node."""
        return 0

    @classmethod
    def from_options(cls: type[_Settings], options: Mapping[str, float]) -> _Settings:
        """Return the defaults with the given values in their place.

        Raises:
            BadRequestError: when a name is unknown, or a value out of range.
        """
        known = {option.name: option.default for option in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in options.items():
            if name not in known:
                raise BadRequestError(f"unknown strategy option {name}; known are {', '.join(sorted(known))}")
            if not _is_count(known[name]):
                values[name] = float(value)
            elif float(value).is_integer():
                values[name] = int(value)
            else:
                raise BadRequestError(f"strategy option {name} is {value}; it must be a whole number")
        return cls(**values)


@dataclass(frozen=True)
class TreeSettings(Settings):
    """Sizes of draft trees and segments, with the FlowSpec paper's symbols.

    The paper's appendix A.1 gives five values. Four are defaults here: L, d0, L_max and d_exp. The fifth,
    L_exp = -1, says that the new nodes of an expansion are a single segment, not how many there are. The
    paper gives no value for k, L_se, d_se and the rows in flight: k is EAGLE-2's, the other defaults are
    ours. The last three options are for ablations: 0 leaves a mechanism out. `naive_pp` has none of the
    three, and cuts its tree into N + 1 segments whatever L_max; `pruned_pp` has the early stop alone.
    """

    tree_nodes: int = 80  # L: nodes of a tree, root included (A.1)
    depth: int = at_most(256, 6)  # d0: layers grown from the root (A.1)
    top_k: int = at_most(256, 10)  # k: frontier nodes a layer, and children of each (EAGLE-2)
    segment_rows: int = 16  # L_max: most rows of a segment (A.1)
    expand_nodes: int = 64  # L_exp: nodes of a tree that is merged into the current one (ours)
    expand_depth: int = at_most(256, 6)  # d_exp: layers of this tree (A.1)
    deepen_nodes: int = 16  # L_se: nodes appended by score-aware expansion (ours)
    deepen_layers: int = at_most(256, 2)  # d_se: layers that score-aware expansion adds (ours)
    max_draft_rows: int = 256  # most sent rows that are neither accepted nor pruned (ours)
    context_aware: int = switch(True)  # whether a moved root is drafted from again (3.4)
    score_aware: int = switch(True)  # whether T_base is deepened when no node is left to send (3.4)
    early_stop: int = switch(True)  # whether a round that has ended leaves the pipeline at once (3.3)

    @property
    def nodes(self) -> int:
        return max(self.depth, self.expand_depth, self.deepen_layers) * self.top_k**2


@dataclass(frozen=True)
class LevelSettings(Settings):
    """Sizes of a tree that goes through the pipeline level by level (pipedec, sections 3.1 and 3.3.3)."""

    width: int = at_most(512, 16)  # w: most nodes of a level (flowspec, A.1; PipeDec's own is 32)
    children: int = at_most(256, 16)  # c: candidates of each node (pipedec, section 4.3.1)
    groups: int = MOST_COUNT  # d: most groups of neighbouring stages; each stage is one if there are fewer
    max_draft_rows: int = 512  # most sent rows that are neither accepted nor pruned (ours)


@dataclass(frozen=True)
class MicroBatchSettings(Settings):
    """Limits of PipeInfer's speculation, as the command line of its artifact sets them.

    Three options leave out a part, as the paper's ablations do (figure 8): `continuous=0`, `cancel=0`, and
    `recovery=0` with `decay=0`, which fixes the cut-off.
    """

    batch_rows: int = 4  # --draft: most tokens of a micro-batch (section IV-B.1)
    sequences: int = at_most(256, 3)  # -np: most branches that are drafted side by side
    cutoff: float = 0.001  # -pa: least confidence of a drafted token
    split: float = 0.8  # -ps: least confidence of a further branch
    recovery: float = 0.4  # -pr: added to the cut-off for each micro-batch sent ahead (section IV-B.2)
    decay: float = 0.01  # -pd: subtracted from the cut-off for each failed attempt (section IV-B.2)
    max_draft_rows: int = 128  # most tokens that are drafted and neither accepted nor pruned (ours)
    continuous: int = switch(True)  # whether micro-batches go on below micro-batches in flight (IV-B)
    cancel: int = switch(True)  # whether runs that cannot be accepted any more are cancelled (IV-D)


@dataclass(frozen=True)
class AutoSettings(Settings):
    """Options of `auto`; the defaults were found by testbed/tools/tune_auto.py."""

    above_zero: ClassVar[tuple[str, ...]] = ("least_node", "prior")

    candidates: int = at_most(256, 16)  # proposals stored below each node
    draft_nodes: int = 64  # most nodes of a forward of the drafter
    segment_rows: int = 64  # most rows of a segment
    max_draft_rows: int = 512  # most sent rows that are neither accepted nor pruned
    max_nodes: int = 2000  # size of the tree from which on nothing is drafted
    row_price: float = 2.0  # by how much more a row has to add to a trip's tokens than to its time
    regrow_share: float = 6.0  # growths from the root are apart by this many times what drafting it takes
    least_node: float = 0.0003  # least probability of a node of the tree; above 0
    prior: float = 10.0  # number of proposals as which the drafter's own probabilities count; above 0

    @property
    def nodes(self) -> int:
        return self.draft_nodes * self.candidates


@dataclass(frozen=True)
class HierarchySettings(Settings):
    """Number of models of PipeSpec, and how far they run ahead (pipespec, section 3)."""

    models: int = 16  # K + 1: most models, the drafter and the target included; 2 or more
    max_draft_rows: int = 128  # most tokens from the last drawn token on, that token included
    lookahead: int = from_0_to(128, 0)  # draft tokens that a verifying model waits for (section 4.4)
    batches: int = from_0_to(256, 0)  # most segments in flight of each model; 0: as many as it has credits

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_models(self.models)


@dataclass(frozen=True)
class LookaheadSettings(Settings):
    """Options of synchronous speculative decoding (pipespec, section 4.4)."""

    lookahead: int = at_most(256, 8)  # tokens of a chain
    models: int = at_most(16, 16)  # as in HierarchySettings

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_models(self.models)


def _check_models(models: int) -> None:
    if models < 2:
        raise BadRequestError(
            f"strategy option models is {models}; it must be 2 or more, for a drafter and the target"
        )


def _is_count(default: object) -> bool:
    return isinstance(default, int)
