"""The draft tree of a session, as it follows from what the draft node drafts, sends, prunes and puts out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flowedge.core.messages import CONTEXT
from flowedge.core.tree import ROOT
from flowedge.live.activity.notes import LayerGrown, RowsPruned, SegmentLeft

MOST_GROWN = 48  # nodes of a layer that are told of, the best first; others are told of when they are sent
_FORMER_ROOTS = 32


class ReportedNode(NamedTuple):
    """A node as watchers are told of it; `parent` is -1 for the first node of a session."""

    number: int
    parent: int
    token: int
    score: float


class ReportedChange(NamedTuple):
    """The nodes of a change, and nodes above them that were not told of before."""

    nodes: list[ReportedNode]
    above: list[ReportedNode]


@dataclass(eq=False)
class _Node:
    number: int
    token: int
    parent: int
    score: float
    above: _Node | None
    children: dict[int, _Node] = field(default_factory=dict)
    told: bool = False


class ObservedTree:
    """All branches below the last token that was put out.

    The strategies have trees of their own kinds. What they all do is told in the same words: layers of
    drafts, rows, prunes and tokens. A node here is a token after a path, so that it is the same node whether
    it was drafted, sent, drafted anew or drawn. Where something does not fit, because the watch began in the
    middle of a session, it is left out.
    """

    def __init__(self) -> None:
        self._next = 0
        self._roots: list[_Node] = []  # the former ones, the present one last
        self._rows: dict[int, _Node] = {}
        self._growth = -1
        self._names: dict[int, _Node] = {}

    def put_out(self, tokens: Iterable[int]) -> ReportedChange:
        """Move the root along tokens; tells of the nodes of the tokens, the new root last."""
        path: list[_Node] = []
        for token in tokens:
            if self._roots:
                root = self._roots[-1]
                node = root.children.get(token) or self._make(root, token, root.score)
                root.children = {token: node}
            else:
                node = self._make(None, token, 0.0)
            self._roots.append(node)
            path.append(node)
        told = _report(path)
        for former in self._roots[:-_FORMER_ROOTS]:
            former.children = {}
        del self._roots[:-_FORMER_ROOTS]
        if self._roots:
            self._roots[0].above = None
        return told

    def grow(self, note: LayerGrown) -> ReportedChange:
        """Add a drafted layer; tells of the best of the nodes that are new."""
        if note.growth != self._growth:
            self._growth, self._names = note.growth, {}
        fresh: list[_Node] = []
        columns = zip(note.names.tolist(), note.parents.tolist(), note.tokens.tolist(), strict=True)
        for schedule, (name, parent, token) in enumerate(columns):
            node = self._named(name, parent, token)
            if node is None:
                continue
            children = zip(
                note.layer.tokens[schedule].tolist(), note.layer.log_probs[schedule].tolist(), strict=True
            )
            for child, log_prob in children:
                if child >= 0 and child not in node.children:
                    fresh.append(self._make(node, child, node.score + log_prob))
        best = sorted(fresh, key=lambda node: -node.score)[:MOST_GROWN]
        return _report(sorted(best, key=lambda node: node.number))

    def send(self, note: SegmentLeft) -> ReportedChange:
        """Give rows to the nodes of a segment of draft rows; tells of them."""
        sent: list[_Node] = []
        if note.tokens is not None and note.parents is not None:
            rows = zip(note.tokens.tolist(), note.parents.tolist(), strict=True)
            for row, (token, parent) in enumerate(rows, start=note.first_row):
                if parent == CONTEXT:
                    node = self._root_of(token)
                else:
                    above = self._rows.get(parent)
                    node = None if above is None else self._child(above, token)
                if node is not None:
                    self._rows[row] = node
                    sent.append(node)
        return _report(sent)

    def prune(self, note: RowsPruned) -> None:
        """Renumber the rows as a prune does."""
        retained: Sequence[int] = note.retained.tolist()
        kept = {note.context + new: self._rows[old] for new, old in enumerate(retained) if old in self._rows}
        first = note.context + note.accepted
        if len(retained) > note.accepted and first not in kept and self._roots:
            kept[first] = self._roots[-1]  # the first draft row that is left is the root
        self._rows = {row: node for row, node in kept.items() if row >= first}

    def _named(self, name: int, parent: int, token: int) -> _Node | None:
        """Return the node that the drafter knows by a name in the present growth."""
        node = self._names.get(name)
        if node is None:
            if name == ROOT:
                node = self._root_of(token)
            elif parent in self._names:
                node = self._child(self._names[parent], token)
            if node is not None:
                self._names[name] = node
        return node

    def _root_of(self, token: int) -> _Node | None:
        """Return the latest root with a token: drafting may have begun before the root moved on."""
        return next((root for root in reversed(self._roots) if root.token == token), None)

    def _child(self, node: _Node, token: int) -> _Node:
        return node.children.get(token) or self._make(node, token, node.score)

    def _make(self, parent: _Node | None, token: int, score: float) -> _Node:
        node = _Node(self._next, token, -1 if parent is None else parent.number, score, parent)
        self._next += 1
        if parent is not None:
            parent.children[token] = node
        return node


def _report(nodes: Iterable[_Node]) -> ReportedChange:
    told, missing = [], []
    for node in nodes:
        node.told = True
        told.append(_reported(node))
        above = node.above
        while above is not None and not above.told:
            above.told = True
            missing.append(_reported(above))
            above = above.above
    return ReportedChange(told, sorted(missing))


def _reported(node: _Node) -> ReportedNode:
    return ReportedNode(node.number, node.parent, node.token, node.score)
