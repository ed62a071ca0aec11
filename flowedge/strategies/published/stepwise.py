"""The algorithm that PipeDec and SpecPipe share: a speculative tree goes through the pipeline level by level.

Both papers describe this algorithm (pipedec 3.1 to 3.4, specpipe 3.2 and 3.3). Both strategies run this code,
so that at equal `width` and `children` they give the same commands.

- Root (pipedec 3.3.2): a drawn token without a node begins a new tree, whose root is sent at once while its
  children are drafted (pipedec, appendix B, rules 2 and 3).
- Layer appending (pipedec 3.3.3, specpipe 3.2.1 and 3.3.3): while the stages compute the levels before it,
  the drafter proposes c candidates below each node of the deepest level. The w candidates with the best
  cumulative probabilities are the next level, and so each level has at most w nodes.
- Subtree pruning (pipedec 3.3.4, specpipe 3.2.1): a level that returns is the root alone, because everything
  beside it was pruned, and gives one token. If the tree has a node for the token (a hit), the tree is pruned
  to its subtree; otherwise (a miss) everything in flight is dead.
- Choosing after pruning (pipedec 3.3.4: "an additional update operation must be performed"; specpipe 3.3.2:
  the first device accepts a new level after the pruning of the step): a level is chosen when it is due to be
  sent.
- Partial refill (specpipe 3.3.2): when a prune leaves nothing of the newest levels, the next level is built
  below the deepest level that lives, from candidates that are known already. PipeDec says only that invalid
  output does not flow on.
- Groups (pipedec 3.1, specpipe 3.4): neighbouring stages may form groups. A group computes one level in a
  step, stage by stage, so as many levels are in flight as there are groups. Groups are few and even: 14
  stages with `groups=7` are 7 groups of 2.
- Cache (pipedec 3.2 and 3.4.2, specpipe 3.3.2): the engine's context and draft tail are PipeDec's "past" and
  "predict". A hit moves the root's row from one to the other without computing it again.

Deviations from both papers:

- Steps follow the returning levels, without a barrier. Transfers overlap with computing, as everywhere in
  this engine, where both papers make them a part of the step (pipedec 3.4, specpipe 3.3.2). The testbed can
  emulate the papers' steps, with PipeDec's central scheduler of transfers (appendix A). PipeDec's graph of
  tasks (appendix B) has no counterpart.
- So a level may enter a group before the level before it has left the group: after a miss the levels follow
  each other through the stages as closely as the first stage takes them. No more are in flight for that. In
  the testbed's lock-step a level stays in its group for a whole step.
- A hit or a miss is decided at the draft node, not at the last stage. The result has to come back first,
  whether the draft node draws the token from the hidden state or the last stage has drawn it.
- The drafter continues in its own branch on a hit, and gets the target's true features after a miss only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flowedge.strategies.base import Strategy
from flowedge.strategies.commands import Command, Emit, Grow, Send
from flowedge.strategies.events import CreditGranted, Layer, Prefilled, Returned, StrategyEvent, Verified
from flowedge.strategies.in_flight_limit import InFlightLimit
from flowedge.strategies.proposal_tree import ProposalTree
from flowedge.strategies.settings import LevelSettings, at_most
from flowedge.strategies.tree_commands import send_nodes


class LevelByLevel(Strategy):
    """The tree, whose levels are sent as they are drafted, and the turns.

    Attributes:
        settings: the sizes of the tree.
        single_level_steps: whether a step is one level in one segment.
    """

    def __init__(self, settings: LevelSettings, step_levels: int = 1, mini_batches: int = 1) -> None:
        """step_levels: levels that a step sends together; mini_batches: segments that they are sent in."""
        super().__init__(settings.max_draft_rows)
        self.settings = settings
        self._step_levels = step_levels
        self._mini_batches = mini_batches
        self.single_level_steps = step_levels == mini_batches == 1
        self._parts_left = 0  # segments that the latest step has still to send
        self._drafts = ProposalTree(settings.children)
        self._gate = InFlightLimit(1, 0)
        self._drafting = False

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._gate = InFlightLimit(self._groups(event.stages), event.credits)
                self._drafts.restart(event.token, event.context)
                return [Emit((event.token,)), *self._proceed()]
            case Layer():
                self._drafting = False
                self._drafts.take(event)
                return self._proceed()
            case Verified():
                self._gate.take_back()
                return self._advance(event)
            case Returned():
                return self._proceed() if self._gate.take_back() else []
            case CreditGranted():
                self._gate.grant()
                return self._proceed()

    def _advance(self, event: Verified) -> list[Command]:
        drafts = self._drafts
        if drafts.tree.node_of_row(event.accepted[-1]) in drafts.deepest():
            self._append_level()
        emit, accept = drafts.advance(event)
        if accept.root is None:
            self._gate.flush()
        if accept.root is None or not drafts.unsent():
            self._parts_left = 0
        if accept.ends_round:
            self._drafting = False
        return [emit, accept, *self._proceed()]

    def _proceed(self) -> list[Command]:
        """Send levels while turns are free, and have the next level drafted."""
        commands: list[Command] = []
        while self._may_send and (send := self._send_level()) is not None:
            commands.append(send)
        if not self._parts_left:
            self._append_ahead()
        return [*commands, *self._draft()]

    @property
    def _may_send(self) -> bool:
        return self._gate.has_credit and (self._parts_left > 0 or self._gate.open)

    def _groups(self, stages: int) -> int:
        """Return d, the number of groups that so many stages form."""
        return min(stages, self.settings.groups)

    def _send_level(self) -> Send | None:
        """Return the command that sends the next level, if its nodes are known and there is room for it.

        With several mini-batches it sends the next of them.
        """
        drafts, begun = self._drafts, self._parts_left > 0
        level = drafts.unsent() if begun else self._next_step()
        parts = self._parts_left if begun else self._mini_batches
        rows_left = self.settings.max_draft_rows - drafts.tree.num_sent
        part = level[: max(min(-(-len(level) // parts), rows_left), 0)]
        if not part:
            return None
        self._parts_left = parts - 1 if len(part) < len(level) else 0
        self._gate.send(same_turn=begun)
        return send_nodes(drafts.tree, part)

    def _next_step(self) -> list[int]:
        """Return the nodes of the next step, parents first, or nothing while the step waits for a level.

        Where nothing is in flight, as after a miss, a step goes with the levels that there are.
        """
        drafts = self._drafts
        while self._unsent_depths < self._step_levels and self._append_level():
            pass
        waits = self._unsent_depths < self._step_levels and not self._gate.idle
        return [] if waits else drafts.unsent()

    @property
    def _unsent_depths(self) -> int:
        return len({int(self._drafts.tree.depths[node]) for node in self._drafts.unsent()})

    def _append_ahead(self) -> None:
        """Choose all levels of the next step but the last, so that the drafter can go on below them."""
        while self._unsent_depths < self._step_levels - 1 and self._append_level():
            pass

    def _draft(self) -> list[Grow]:
        """Have the candidates below the deepest level drafted, unless they are known or being drafted."""
        drafts = self._drafts
        uncomputed = [node for node in drafts.deepest() if not drafts.computed[node]]
        if not uncomputed or self._drafting:
            return []
        self._drafting = True
        return [drafts.grow(uncomputed)]

    def _append_level(self) -> list[int]:
        """Add the level below the deepest level, once all its candidates are known; returns its nodes.

        The level is chosen when it is due to be sent and the tree has been pruned. So it has its full width
        within the subtree that lives.
        """
        drafts, frontier = self._drafts, np.array(self._drafts.deepest())
        if not drafts.computed[frontier].all():
            return []
        offsets, columns = np.nonzero(drafts.proposed[frontier] >= 0)
        parents = frontier[offsets]
        tokens, log_probs = drafts.proposed[parents, columns], drafts.log_probs[parents, columns]
        scores = drafts.tree.scores[parents] + log_probs
        best = np.argsort(-scores, kind="stable")[: self.settings.width]
        return drafts.add(parents[best].tolist(), tokens[best].tolist(), log_probs[best].tolist())


class PipeDec(LevelByLevel):
    """LevelByLevel with PipeDec's sizes, which are the only difference from SpecPipe here.

    - Width (3.3.3, 4.3.1): the paper measures w = 32 and c = 16 as best on its testbed, which are
      `width=32, children=16`. The default is 16 a layer as in FlowSpec's comparison ("for PipeDec, we select
      16 tokens per layer": flowspec, appendix A.1). The FlowSpec paper does not name its c; 16 is PipeDec's.
    - Groups (3.1, 4.1): each stage is a group, as in the paper's runs with 14 and 21 stages. Its run with 7
      stages is `groups=7` on 14 stages.
    """

    name: ClassVar[str] = "pipedec"


@dataclass(frozen=True)
class LevelBatchSettings(LevelSettings):
    """LevelSettings with SpecPipe's sizes.

    The width is the best on the paper's testbed (specpipe, sections 1 and 4.1). Stages are grouped from 17 on
    (3.4: "e.g., over 16 stages").
    """

    width: int = at_most(512, 64)  # w
    groups: int = 16  # d: most groups of neighbouring stages


@dataclass(frozen=True)
class SpecPipeSettings(LevelBatchSettings):
    """LevelBatchSettings with two variations of a step (specpipe, 3.4)."""

    step_levels: int = at_most(256, 1)  # k: levels of a step
    mini_batches: int = 1  # segments that a step is sent in; a group computes them side by side


class SpecPipe(LevelByLevel):
    """LevelByLevel with SpecPipe's width, groups and variations of a step.

    - Fixed width (3.3.3): `width` should minimise the time between tokens by the paper's equations 1 and 2. A
      strategy does not know the devices' profile, so the width is an option; `flowedge bench` computes it
      from the profile (flowedge_testbed/emulation/specpipe_width.py).
    - Children (4.1): our copy of the text has lost the number; 16 is PipeDec's choice (pipedec, 4.3.1).
    - Token source (3.3.1): the session's drafter, in place of a large draft model on a device of its own.
    - Several requests (4.4): they take turns ("iteration-based scheduling"); `specpipe_db` batches them.
    - Several levels a step (3.4): a segment holds the next `step_levels` levels. When it returns, all its
      rows that live are verified, so one step may give as many tokens. This is the paper's "added token
      verification stage for the next levels"; the verification takes longer by these rows. All levels of a
      step but the last are chosen ahead, because the drafter needs their nodes. A prune thins them out.
      After a miss the root goes alone. The paper found several levels slower.
    - Groups of a long pipeline (3.4): at most 16 levels are in flight, whatever the number of stages. In a
      group, mini-batches of a level may follow each other ("mini-batch concurrency can be applied"). The
      paper gives neither the size of groups nor that of mini-batches, and measured neither.
    """

    name: ClassVar[str] = "specpipe"

    def __init__(self, settings: SpecPipeSettings) -> None:
        super().__init__(settings, settings.step_levels, settings.mini_batches)
