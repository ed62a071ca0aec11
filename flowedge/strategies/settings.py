"""Options of the strategies; the defaults are those of the papers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from flowedge.core.errors import BadRequestError

_Settings = TypeVar("_Settings", bound="Settings")


@dataclass(frozen=True)
class Settings:
    """Options by name: counts, which are whole and 1 or more, and real numbers, which are 0 or more.

    Raises BadRequestError when a value is out of range.
    """

    def __post_init__(self) -> None:
        for option in fields(self):
            value, least = getattr(self, option.name), int(_is_count(option.default))
            if not least <= value < math.inf:
                raise BadRequestError(
                    f"strategy option {option.name} is {value}; it must be {least} or more, and finite"
                )

    @classmethod
    def from_options(cls: type[_Settings], options: Mapping[str, float]) -> _Settings:
        """Settings with some values overridden by name.

        Raises BadRequestError for an unknown name, or a count that is not a whole number.
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
    """Sizes of draft trees and segments, as the FlowSpec paper's appendix A.1 fixes them.

    The symbols are the paper's.
    """

    tree_nodes: int = 80  # L: nodes of a tree, root included
    depth: int = 6  # d0: layers grown from the root
    top_k: int = 10  # k: frontier nodes a layer, and children of each
    segment_rows: int = 16  # L_max: most rows of a segment
    expand_nodes: int = 64  # L_exp: nodes of a tree that is merged into the current one
    expand_depth: int = 6  # d_exp: its layers
    deepen_nodes: int = 16  # L_se: nodes appended by score-aware expansion
    deepen_layers: int = 2  # d_se: layers it adds
    max_draft_rows: int = 256  # most sent rows that are neither accepted nor pruned


@dataclass(frozen=True)
class LevelSettings(Settings):
    """Sizes of a tree that goes through the pipeline level by level (pipedec, section 3.3.3)."""

    width: int = 16  # w: most nodes of a level
    children: int = 16  # c: candidates of each node
    max_draft_rows: int = 512  # most sent rows that are neither accepted nor pruned


@dataclass(frozen=True)
class MicroBatchSettings(Settings):
    """How far PipeInfer speculates; the values are those of its artifact's command line."""

    batch_rows: int = 4  # --draft: most tokens of a micro-batch (section IV-B.1)
    sequences: int = 3  # -np: most branches that are drafted side by side
    cutoff: float = 0.001  # -pa: least confidence of a drafted token
    split: float = 0.8  # -ps: least confidence of a further branch
    recovery: float = 0.4  # -pr: raises the cut-off for each micro-batch sent ahead (section IV-B.2)
    decay: float = 0.01  # -pd: lowers it for each attempt that fails; above 0
    max_draft_rows: int = 128  # most tokens that are drafted and neither accepted nor pruned

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay == 0:
            raise BadRequestError("strategy option decay is 0; the cut-off must come down in the end")


@dataclass(frozen=True)
class AutoSettings(Settings):
    """What may be tuned of `auto`; the defaults were searched for by testbed/tools/tune_auto.py."""

    candidates: int = 16  # proposals that are kept below each node
    draft_nodes: int = 32  # most nodes that are drafted below in one forward
    segment_rows: int = 48  # most rows of a segment
    max_draft_rows: int = 384  # most sent rows that are neither accepted nor pruned
    max_nodes: int = 600  # size of the tree beyond which nothing is drafted
    row_price: float = 0.3  # what a row gains by going now must be this share of what it delays
    patience: float = 1.5  # forwards that the first stage must be busy for, for a segment to wait
    least_node: float = 0.001  # least probability of a node of the tree; above 0
    stale_tokens: float = 3.0  # tokens after which the drafter begins at the root again
    extra_segments: float = 0.0  # segments under way beyond one a stage
    prior: float = 10.0  # proposals that the drafter's own probabilities count as; above 0
    lone_share: float = 0.0  # time of a lone row over that of several; 0 to measure it

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("least_node", "prior"):
            if getattr(self, name) == 0:
                raise BadRequestError(f"strategy option {name} is 0; it must be above 0")


@dataclass(frozen=True)
class HierarchySettings(Settings):
    """How many models PipeSpec works with, and how far they run ahead (pipespec, section 3)."""

    models: int = 16  # K + 1: most models of the hierarchy, the drafter and the target among them; 2 or more
    max_draft_rows: int = 128  # most tokens ahead of the last drawn one, itself included

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.models < 2:
            raise BadRequestError(
                f"strategy option models is {self.models}; a drafter and the target are 2 models"
            )


@dataclass(frozen=True)
class LookaheadSettings(Settings):
    """Plain speculative decoding: a chain is drafted, then verified (pipespec, section 4.4)."""

    lookahead: int = 8  # tokens of a chain


def _is_count(default: object) -> bool:
    return isinstance(default, int)
