"""PipeInfer: asynchronous, continuous speculation in micro-batches (pipeinfer.txt)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flowedge.core.tree import ROOT, UNSENT
from flowedge.strategies.base import (
    AcceptPath,
    Command,
    CreditGranted,
    Emit,
    Layer,
    Prefilled,
    Returned,
    Strategy,
    StrategyEvent,
    Verified,
)
from flowedge.strategies.live_tree import LiveTree
from flowedge.strategies.settings import MicroBatchSettings


class PipeInfer(Strategy):
    """Section by section, and where a choice had to be made:

    - Asynchronous speculation (IV-A): a drawn token that is not under way is sent alone at once, the
      "non-speculative run", while the drafter goes on. The paper starts one for every drawn token; where a
      speculative run holds the token already, it is the same row here and is not computed twice.
    - Continuous speculation (IV-B): whenever D0 has nothing to verify it drafts the next micro-batch below
      the tree there is. A micro-batch has 1 to 4 tokens; a branch goes on while its best token is at least as
      likely as the cut-off, and forks where a further token reaches `split`. The values are those of the
      artifact's command line; at 0.8 nothing forks, so that a run is a chain there.
    - Reactive speculation (IV-B.2): each micro-batch raises the cut-off by `recovery`, each attempt that
      gives none lowers it by `decay`, and a run that comes back with a live row resets it. An attempt is a
      draft forward: the paper's loop has the same pace, and a strategy has no clock.
    - Multibuffering (IV-C): every run has its own place in the session's one sequence of rows, and a row sees
      its ancestors only, so partitions, buffer swaps and cache copies are not needed: a prune, numbered by
      epoch and ordered with the runs, turns accepted rows into context. A run begins below rows that are
      under way, where the paper copies cache entries early so as to skip them.
    - Early inference cancellation (IV-D): the prune that a verification causes is the cancellation signal; it
      reaches every stage directly, trims runs row by row, and aborts one that is being computed when none of
      its rows lives. It comes back as a header, as in the paper. No run is ever superfluous.
    - The drafter's known tokens are updated at a mismatch, by a new tree from the drawn token; on a match it
      goes on in its own branch, as a language model does.
    - Runs queue at D0 instead of at the first stage, until there is a credit.
    """

    name: ClassVar[str] = "pipeinfer"

    def __init__(self, settings: MicroBatchSettings) -> None:
        self._settings = settings
        self._live = LiveTree()
        self._credits = 0
        self._queue: deque[list[int]] = deque()  # runs that wait, as names of nodes
        self._batch: list[int] = []  # names of the micro-batch that is being drafted
        self._raised = 0.0  # by how much the cut-off is above the configured one
        self._drafting = False

    @property
    def max_draft_rows(self) -> int:
        return self._settings.max_draft_rows

    @property
    def cutoff(self) -> float:
        """The least confidence a drafted token must have now."""
        return self._settings.cutoff + self._raised

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._credits = event.credits
                self._begin(event.token, event.context)
                return [Emit((event.token,)), *self._proceed()]
            case Layer():
                self._drafting = False
                self._extend(self._live.take(event))
                return self._proceed()
            case Verified():
                return self._advance(event)
            case Returned():
                return []
            case CreditGranted():
                self._credits += 1
                return self._proceed()

    def _begin(self, token: int, context: int) -> None:
        self._live.restart(token, context)
        self._queue = deque([[ROOT]])
        self._batch = []
        self._drafting = False

    def _advance(self, event: Verified) -> list[Command]:
        live, tree = self._live, self._live.tree
        self._raised = 0.0
        path = [tree.node_of_row(row) for row in event.accepted]
        emitted = Emit((*(int(tree.tokens[node]) for node in path[1:]), event.token))
        match_ = tree.child(path[-1], event.token)
        if match_ is None:
            self._begin(event.token, tree.context + len(path))
            return [emitted, AcceptPath(event.accepted, None, ends_round=True), *self._proceed()]
        row = int(tree.rows[match_])
        live.reroot(match_)
        self._batch = [live.name(node) for node in live.living(self._batch) if node != ROOT]
        if row == UNSENT:
            self._queue.appendleft([live.name(ROOT)])
        prune = AcceptPath(event.accepted, None if row == UNSENT else row, ends_round=False)
        return [emitted, prune, *self._proceed()]

    def _extend(self, tips: list[int]) -> None:
        """Take the candidates that are confident enough into the micro-batch; it ends where none is."""
        grown: list[int] = []
        forks = max(self._settings.sequences - len(tips), 0)
        for node in sorted(tips, key=lambda tip: -float(self._live.tree.scores[tip])):
            room = self._settings.batch_rows - len(self._batch) - len(grown)
            children = self._children(node, room, forks)
            forks -= max(len(children) - 1, 0)
            grown += children
        self._batch += [self._live.name(node) for node in grown]
        if tips and (not grown or len(self._batch) >= self._settings.batch_rows):
            self._end_batch()

    def _children(self, node: int, room: int, forks: int) -> list[int]:
        """Add the best candidate below a node and, where a further one is likely enough, a fork."""
        found = self._live.candidates(node)
        if found is None:
            return []
        confidence = np.exp(found.log_probs)
        if not len(confidence) or confidence[0] < self.cutoff:
            return []
        count = 1 + int(np.count_nonzero(confidence[1 : 1 + forks] > self._settings.split))
        count = min(count, room)
        tokens, log_probs = found.tokens[:count].tolist(), found.log_probs[:count].tolist()
        return self._live.add([node] * count, tokens, log_probs)

    def _end_batch(self) -> None:
        """One attempt is over: the micro-batch waits to be sent, and the cut-off reacts."""
        if self._batch:
            self._queue.append(self._batch)
            self._batch = []
            self._raised += self._settings.recovery
        else:
            self._raised -= self._settings.decay

    def _proceed(self) -> list[Command]:
        """Send the runs there are credits for, and go on speculating."""
        commands: list[Command] = []
        if self._batch and not self._tips():
            self._end_batch()
        while self._credits and self._queue:
            run = [node for node in self._live.living(self._queue[0]) if self._live.tree.rows[node] == UNSENT]
            self._queue.popleft()
            if run:
                self._credits -= 1
                commands.append(self._live.send(run))
        room = self._settings.max_draft_rows - len(self._live.tree) + len(self._batch)
        tips = self._tips()
        if tips and not self._drafting and room >= self._settings.batch_rows:
            self._drafting = True
            commands.append(self._live.grow(tips, self._settings.sequences))
        return commands

    def _tips(self) -> list[int]:
        """The leaves that are speculated on: those of the micro-batch, or else the best of all.

        None of them is one below which the drafter has nothing to propose: it would say so again.
        """
        leaves = [node for node in self._live.leaves() if not self._is_dead_end(node)]
        begun = [node for node in leaves if self._live.name(node) in self._batch]
        by_score = sorted(begun or leaves, key=lambda node: -float(self._live.tree.scores[node]))
        return sorted(by_score[: self._settings.sequences])

    def _is_dead_end(self, node: int) -> bool:
        found = self._live.candidates(node)
        return found is not None and not len(found.tokens)
