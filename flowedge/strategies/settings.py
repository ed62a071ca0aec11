"""Sizes of draft trees, as the FlowSpec paper's appendix A.1 fixes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from flowedge.errors import BadRequestError


@dataclass(frozen=True)
class TreeSettings:
    """Sizes of draft trees and segments; the symbols are the paper's.

    Raises BadRequestError when a value is below 1.
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

    def __post_init__(self) -> None:
        for option in fields(self):
            if getattr(self, option.name) < 1:
                raise BadRequestError(
                    f"strategy option {option.name} is {getattr(self, option.name)}; it must be 1 or more"
                )

    @classmethod
    def from_options(cls, options: Mapping[str, float]) -> TreeSettings:
        """Settings with some values overridden by name.

        Raises BadRequestError for an unknown name or a value that is not a whole number.
        """
        known = {option.name for option in fields(cls)}
        for name, value in options.items():
            if name not in known:
                raise BadRequestError(f"unknown strategy option {name}; known are {', '.join(sorted(known))}")
            if value != int(value):
                raise BadRequestError(f"strategy option {name} is {value}; it must be a whole number")
        return cls(**{name: int(value) for name, value in options.items()})
