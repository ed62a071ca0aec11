"""PipeInfer: asynchronous, continuous speculation in micro-batches (pipeinfer.txt)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from flowedge.core.tree import ROOT, UNSENT
from flowedge.strategies.base import Strategy
from flowedge.strategies.commands import Command, Emit
from flowedge.strategies.events import CreditGranted, Layer, Prefilled, Returned, StrategyEvent, Verified
from flowedge.strategies.proposal_tree import ProposalTree
from flowedge.strategies.settings import MicroBatchSettings
from flowedge.strategies.tree_commands import send_nodes


class PipeInfer(Strategy):
    """The sections of the paper, and the choices that it leaves. A run is a micro-batch in the pipeline.

    - Asynchronous speculation (IV-A): a drawn token that is not in flight is sent alone at once, which is the
      "non-speculative run", while the drafter goes on. The paper starts a non-speculative run for every drawn
      token. If a speculative run holds the token already, it is the same row here and is not computed twice.
    - Continuous speculation (IV-B): whenever D0 has nothing to verify, it drafts the next micro-batch below
      the existing tree. A micro-batch has 1 to 4 tokens. A branch continues while its best token is at least
      as likely as the cut-off, and forks where another token reaches `split`. The values are those of the
      artifact's command line; at split = 0.8 nothing forks, so that a run is a chain. With `continuous=0` the
      tree holds one micro-batch beyond the drawn token, which each result fills up again.
    - Reactive speculation (IV-B.2): each micro-batch raises the cut-off by `recovery`, each failed attempt
      lowers it by `decay`, and a run that returns with a live row resets it. A failed attempt takes no time,
      as in the artifact, where the proposals are known by then: so the cut-off decides where a micro-batch
      ends, and D0 never idles for it. With a `decay` of 0 it idles until a run returns. In the artifact the
      raise is also taken back after a failed attempt.
    - Multibuffering (IV-C): every run has its own rows in the session's one sequence, and a row sees its
      ancestors only. So partitions, buffer swaps and cache copies are not needed: a prune, ordered with the
      runs by its epoch, turns accepted rows into context. A run begins below rows that are in flight, where
      the paper copies cache entries early to skip them.
    - Early inference cancellation (IV-D): the prune that follows a verification is the cancellation signal.
      It reaches every stage directly, trims runs row by row, and aborts a run in computation when none of its
      rows lives. A cancelled run returns as a header, as in the paper. No run is ever superfluous. With
      `cancel=0` the prune follows the runs in flight, which every stage computes and sends whole.
    - The drafter gets the known tokens at a mismatch, by a new tree from the drawn token. On a match it
      continues in its own branch, as a language model does.
    - Runs that lack a credit wait at D0 instead of at the first stage.
    """

    name: ClassVar[str] = "pipeinfer"

    def __init__(self, settings: MicroBatchSettings) -> None:
        super().__init__(settings.max_draft_rows)
        self._settings = settings
        self._drafts = ProposalTree(settings.sequences)
        self._credits = 0
        self._queue: deque[list[int]] = deque()  # unsent runs, as names of nodes
        self._batch: list[int] = []  # the micro-batch in drafting, as names of nodes
        self._raised = 0.0  # difference of the cut-off from the configured one
        self._drafting = False

    @property
    def cutoff(self) -> float:
        """The least probability that a drafted token must have now."""
        return self._settings.cutoff + self._raised

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._credits = event.credits
                self._drafts.restart(event.token, event.context)
                self._restart()
                return [Emit((event.token,)), *self._proceed()]
            case Layer():
                self._drafting = False
                self._drafts.take(event)
                return self._proceed()
            case Verified():
                return self._advance(event)
            case Returned():
                return []
            case CreditGranted():
                self._credits += 1
                return self._proceed()

    def _restart(self) -> None:
        self._queue = deque([[ROOT]])
        self._batch = []
        self._drafting = False

    def _advance(self, event: Verified) -> list[Command]:
        drafts = self._drafts
        self._raised = 0.0
        emit, accept = drafts.advance(event)
        if accept.ends_round:
            self._restart()
        else:
            self._batch = [int(drafts.names[node]) for node in drafts.living(self._batch) if node != ROOT]
            if accept.root is None:
                self._queue.appendleft([int(drafts.names[ROOT])])
        return [emit, replace(accept, express=bool(self._settings.cancel)), *self._proceed()]

    def _proceed(self) -> list[Command]:
        """Draft until a forward of the drafter is needed, and send runs while there are credits."""
        tips = [] if self._drafting else self._draft_known()
        commands: list[Command] = []
        while self._credits and self._queue:
            living = self._drafts.living(self._queue.popleft())
            run = [node for node in living if self._drafts.tree.rows[node] == UNSENT]
            if run:
                self._credits -= 1
                commands.append(send_nodes(self._drafts.tree, run))
        if tips:
            self._drafting = True
            commands.append(self._drafts.grow(tips))
        return commands

    def _draft_known(self) -> list[int]:
        """Add tokens of known proposals to micro-batches; return the tips whose proposals are needed next."""
        while True:
            tips = self._tips() if self._tokens_left > 0 else []
            unknown = [tip for tip in tips if not self._drafts.computed[tip]]
            if unknown:
                return unknown
            if not self._extend(tips) and not self._end_attempt(tips):
                return []

    @property
    def _tokens_left(self) -> int:
        """Tokens that the present micro-batch may still take."""
        settings, begun = self._settings, len(self._batch)
        drafted = len(self._drafts.tree) - 1 - begun
        most = min(settings.batch_rows, settings.max_draft_rows - 1)
        if not settings.continuous:
            return most - drafted - begun
        return most - begun if drafted + most < settings.max_draft_rows else 0

    def _extend(self, tips: list[int]) -> bool:
        """Add the confident proposals below `tips` to the micro-batch; return whether there are any."""
        grown: list[int] = []
        left = self._tokens_left
        forks = max(self._settings.sequences - len(tips), 0)
        for node in sorted(tips, key=lambda tip: -float(self._drafts.tree.scores[tip])):
            children = self._children(node, left - len(grown), forks)
            forks -= max(len(children) - 1, 0)
            grown += children
        self._batch += [int(self._drafts.names[node]) for node in grown]
        return bool(grown)

    def _children(self, node: int, rows_left: int, forks: int) -> list[int]:
        """Add the best proposal below a node, and further proposals as forks if they are likely enough."""
        tokens, log_probs = self._drafts.proposals(node)
        confidence = np.exp(log_probs)
        if not len(confidence) or confidence[0] < self.cutoff:
            return []
        count = 1 + int(np.count_nonzero(confidence[1 : 1 + forks] > self._settings.split))
        count = min(count, rows_left)
        return self._drafts.add([node] * count, tokens[:count].tolist(), log_probs[:count].tolist())

    def _end_attempt(self, tips: list[int]) -> bool:
        """Queue the micro-batch, if it has tokens, or lower the cut-off until one of the tips reaches it.

        Returns:
            Whether another attempt may follow: not if the cut-off has no decay.
        """
        decay = self._settings.decay
        if self._batch:
            self._queue.append(self._batch)
            self._batch = []
            self._raised += self._settings.recovery
        elif tips and decay:
            likeliest = max(float(self._drafts.proposals(tip)[1][0]) for tip in tips)
            missing = self.cutoff - float(np.exp(likeliest))
            self._raised -= max(float(np.ceil(missing / decay)), 1.0) * decay
        else:
            return False
        return True

    def _tips(self) -> list[int]:
        """Return the leaves to draft below: leaves of the micro-batch, or else the best leaves of the tree.

        A leaf below which the drafter has proposed nothing is left out: the drafter would propose nothing
            again.
        """
        dead_end = self._drafts.computed & (self._drafts.proposed < 0).all(axis=1)
        leaves = [node for node in self._drafts.leaves() if not dead_end[node]]
        begun = [node for node in leaves if int(self._drafts.names[node]) in self._batch]
        by_score = sorted(begun or leaves, key=lambda node: -float(self._drafts.tree.scores[node]))
        return sorted(by_score[: self._settings.sequences])
