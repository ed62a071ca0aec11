"""Drafting with a block head: one forward for all depths of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from flowedge.core.arrays import NO_TOKEN
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.block.block_head import BlockHead
from flowedge.drafting.block.block_pass import add_text, predict_blocks
from flowedge.drafting.block.kernel_blocks import BlockStart, KernelBlocks
from flowedge.drafting.block.parallel_head import ParallelHead
from flowedge.drafting.drafter import ROOT, DraftLayer, Frontier, GrowRequest
from flowedge.drafting.heads.head_rows import TrueRows
from flowedge.drafting.heads.head_store import HeadStore
from flowedge.drafting.heads.store_drafter import StoreDrafter, StoreSession
from flowedge.drafting.model_drafter import GrownNode, Prediction, rows_of
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.models.host.copies import to_device
from flowedge.models.kernels.layer import NoKernelError
from flowedge.models.lm_head import LMHead
from flowedge.models.taps import Taps


@dataclass(frozen=True, eq=False)
class _Block:
    """What a block has predicted.

    Attributes:
        position: of the text's last token, with which the block began.
        states: [depths, hidden]; marginals: the tokens of each depth, whatever the path to them is.
    """

    position: int
    states: torch.Tensor
    marginals: Prediction


@dataclass(kw_only=True)
class _BlockSession(StoreSession):
    """A session whose store has a row for each true row, then the rows of a block.

    The row of a GrownNode is here the depth of its children in the block. A true row's state is that of the
    block that predicted the token after it, or zero where none did; in P-EAGLE that of the row itself.
    """

    block: _Block | None = None

    def set_true_rows(self, rows: int) -> None:
        self.true_rows = rows
        self.root = GrownNode(0, rows + 1)

    def truncate(self, rows: int) -> None:
        super().truncate(rows)
        self.block = None

    def store_predictors(self, rows: TrueRows) -> None:
        """Store what predicted the tokens after rows, whose keys and values are stored."""
        states, block = self.store.states, self.block
        states[rows.first : rows.stop] = 0
        if block is not None:
            # The row of token t leads to token t + 1, and its state predicts the token after that.
            depth = rows.first + 1 - block.position
            known = block.states[depth : depth + rows.count]
            states[rows.first : rows.first + len(known)] = known

    def add_nodes(self, frontier: Frontier) -> None:
        for node, parent in zip(frontier.nodes, frontier.parents, strict=True):
            above = self.nodes[parent]
            self.nodes[node] = above.child(above.row + 1)


class BlockDrafter(StoreDrafter[_BlockSession]):
    """A Drafter whose first layer of a growth takes a forward, and whose further layers take none.

    The children of a node are the likeliest tokens of its depth, whatever the path to it is (DDTree, arXiv
    2604.12989), except that in some heads the node's token corrects how likely these are. Below the depth of
    a block nothing is proposed.
    """

    def __init__(
        self,
        head: BlockHead | ParallelHead,
        lm_head: LMHead,
        embedding: nn.Embedding,
        taps: Taps,
        proposals: ProposalHead | None = None,
    ) -> None:
        """Draft with a head; arguments as of StoreDrafter."""
        super().__init__(head, lm_head, embedding, taps, proposals, layers=len(head.blocks.layers))
        self.head = head
        self._depths = head.blocks.depths
        self._kernels: KernelBlocks | None = None
        if isinstance(head, BlockHead):
            with suppress(NoKernelError):
                self._kernels = KernelBlocks(head)

    @property
    def _draft_rows(self) -> int:
        return self.head.blocks.size

    def _new_session(
        self, capacity: int, first_token: int, noise: SamplingParams | None, store: HeadStore
    ) -> _BlockSession:
        return _BlockSession(capacity=capacity, first_token=first_token, noise=noise, store=store)

    def grow(self, requests: Sequence[GrowRequest]) -> list[DraftLayer]:
        layers = super().grow(requests)
        for request, layer in zip(requests, layers, strict=True):
            beyond = self._beyond(self._sessions[request.session], request.frontier)
            layer.tokens[beyond], layer.log_probs[beyond] = NO_TOKEN, -np.inf
        return layers

    def _compute(
        self,
        extended: Sequence[tuple[_BlockSession, GrowRequest]],
        grown: Sequence[tuple[_BlockSession, Frontier]],
    ) -> None:
        added = self._true_rows(extended)
        if added:
            add_text(self.head, self._embedding, [(state.store, rows) for state, rows in added])
        for state, rows in added:
            if self.head.blocks.eagle is None:
                state.store_predictors(rows)
            state.set_true_rows(rows.stop)
        for state, frontier in grown:
            state.add_nodes(frontier)

    def _below(self, asked: Sequence[tuple[_BlockSession, Frontier]]) -> list[Prediction]:
        beginning = [state for state, frontier in asked if list(frontier.nodes) == [ROOT]]
        if beginning:
            self._begin_blocks(beginning)
        return [self._of_nodes(state, frontier) for state, frontier in asked]

    def _begin_blocks(self, sessions: Sequence[_BlockSession]) -> None:
        """Predict all depths behind the texts of sessions."""
        starts = [BlockStart(state.store, state.tokens[-1], state.true_rows) for state in sessions]
        found = predict_blocks(self.head, self._embedding, starts, self._kernels)
        positions = [[start.position + 1 + depth for depth in range(self._depths)] for start in starts]
        marginals = self._predictions(list(zip(sessions, found, positions, strict=True)))
        for state, start, states, each in zip(sessions, starts, found, marginals, strict=True):
            state.block = _Block(start.position, states, each)

    def _of_nodes(self, state: _BlockSession, frontier: Frontier) -> Prediction:
        """The tokens that follow nodes. Below the last depth all are alike."""
        depths = [state.nodes[node].row for node in frontier.nodes]
        if state.block is None or not depths:
            return Prediction(torch.empty((0, self.draft_tokens), device=self.device), [], self._ids)
        marginals, rows = state.block.marginals, [min(depth, self._depths - 1) for depth in depths]
        logits = rows_of(marginals.logits, rows)
        correction = self.head.correction
        if correction is not None:
            (tokens,) = to_device(self.device, np.array(frontier.tokens, dtype=np.int64))
            logits = correction.corrected(logits, marginals.ids, tokens, rows_of(state.block.states, rows))
        beyond = self._beyond(state, frontier)
        if beyond:
            logits = logits.clone()
            logits[beyond] = 0
        return Prediction(logits, state.positions_of(frontier.nodes), marginals.ids)

    def _beyond(self, state: _BlockSession, frontier: Frontier) -> list[int]:
        """The places of the nodes below which the block predicts nothing."""
        return [place for place, node in enumerate(frontier.nodes) if state.nodes[node].row >= self._depths]
