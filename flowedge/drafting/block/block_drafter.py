"""Drafting with a block head: one forward for all depths of a tree, and further ones behind its paths."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

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

    The row of a GrownNode is here the number of nodes on its path. A true row's state is that of the
    block that predicted the token after it, or zero where none did; in P-EAGLE that of the row itself.

    Attributes:
        block: behind the text; None before the first.
        passes: by node, the states [n, hidden] of the block behind its path, which predict n further tokens.
        lines: of each node, the nodes and tokens from the root's child to itself.
    """

    block: _Block | None = None
    passes: dict[int, torch.Tensor] = field(default_factory=dict)
    lines: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    def set_true_rows(self, rows: int) -> None:
        self.true_rows = rows
        self.root = GrownNode(0, rows + 1)

    def truncate(self, rows: int) -> None:
        super().truncate(rows)
        self.block = None

    def discard_growth(self) -> None:
        super().discard_growth()
        self.passes, self.lines = {}, {}

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
        every = zip(frontier.nodes, frontier.parents, frontier.tokens, strict=True)
        for node, parent, token in every:
            above = self.known(parent)
            self.nodes[node] = above.child(above.row + 1)
            self.lines[node] = (*self.lines.get(parent, ()), (node, token))

    def start(self, line: tuple[tuple[int, int], ...] = (), left_out: int = 0) -> BlockStart:
        """The block behind the text and the tokens of a line."""
        path = tuple(token for _, token in line)
        return BlockStart(self.store, self.tokens[-1], self.true_rows, path, left_out)


class BlockDrafter(StoreDrafter[_BlockSession]):
    """A Drafter whose first layer of a growth takes a forward, and whose further layers take none.

    The children of a node are the likeliest tokens of its depth, whatever the path to it is (DDTree, arXiv
    2604.12989), except that in some heads the node's token corrects how likely these are. Where rows of a
    block see no later row (JetSpec, arXiv 2606.18394), a node whose path has a multiple of `pass_depths`
    tokens takes a forward over a block with these tokens, which predicts what follows this very path; nodes
    below go by it. A path in a block has no more tokens than a block predicts. Below the depth of the last
    block nothing is proposed.
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
        every = head.blocks.pass_depths
        # Tokens of paths behind which there is a block, the text's own included.
        self._passes = [0] if every is None else list(range(0, self._depths + 1, every))
        self._kernels: KernelBlocks | None = None
        if isinstance(head, BlockHead):
            with suppress(NoKernelError):
                self._kernels = KernelBlocks(head)

    @property
    def _draft_rows(self) -> int:
        return self.head.blocks.size + self._passes[-1]

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
        self._pass_behind(asked)
        return [self._of_nodes(state, frontier) for state, frontier in asked]

    def _begin_blocks(self, sessions: Sequence[_BlockSession]) -> None:
        """Predict all depths behind the texts of sessions."""
        starts = [state.start() for state in sessions]
        found = predict_blocks(self.head, self._embedding, starts, self._kernels)
        positions = [[start.position + 1 + depth for depth in range(self._depths)] for start in starts]
        marginals = self._predictions(list(zip(sessions, found, positions, strict=True)))
        for state, start, states, each in zip(sessions, starts, found, marginals, strict=True):
            state.block = _Block(start.position, states, each)

    def _pass_behind(self, asked: Sequence[tuple[_BlockSession, Frontier]]) -> None:
        """Predict all depths behind the paths that nodes go by, unless that is done."""
        due: dict[tuple[int, int], tuple[_BlockSession, tuple[tuple[int, int], ...]]] = {}
        for state, frontier in asked:
            for node in frontier.nodes:
                line = self._line_of_block(state, node)
                if line and line[-1][0] not in state.passes and not self._is_beyond(state, node):
                    due[id(state), line[-1][0]] = state, line
        if due:
            most, unused = self._passes[-1], self._depths - self._passes[1]
            starts = [state.start(line, unused if len(line) < most else 0) for state, line in due.values()]
            found = predict_blocks(self.head, self._embedding, starts, self._kernels)
            for (state, line), states in zip(due.values(), found, strict=True):
                state.passes[line[-1][0]] = states

    def _line_of_block(self, state: _BlockSession, node: int) -> tuple[tuple[int, int], ...]:
        """The nodes and tokens of the path of the block that predicts what follows a node."""
        line = state.lines.get(node, ())
        return line[: self._passes[bisect_right(self._passes, len(line)) - 1]]

    def _is_beyond(self, state: _BlockSession, node: int) -> bool:
        """Whether no block predicts what follows a node."""
        return state.nodes[node].row - self._passes[-1] >= self._depths

    def _of_nodes(self, state: _BlockSession, frontier: Frontier) -> Prediction:
        """The tokens that follow nodes. Below the last depth all are alike."""
        if state.block is None or not len(frontier.nodes):
            return Prediction(torch.empty((0, self.draft_tokens), device=self.device), [], self._ids)
        block, positions = state.block, state.positions_of(frontier.nodes)
        lines = [self._line_of_block(state, node) for node in frontier.nodes]
        rows = [
            min(state.nodes[node].row - len(line), self._depths - 1)
            for node, line in zip(frontier.nodes, lines, strict=True)
        ]
        logits, beyond = rows_of(block.marginals.logits, rows), self._beyond(state, frontier)
        correction = self.head.correction
        states = block.states if correction is None else rows_of(block.states, rows)
        passed = [place for place, line in enumerate(lines) if line and place not in beyond]
        if passed:
            own = torch.stack([state.passes[lines[place][-1][0]][rows[place]] for place in passed])
            (found,) = self._predictions([(state, own, [positions[place] for place in passed])])
            (places,) = to_device(self.device, np.array(passed))
            logits = logits.index_copy(0, places, found.logits)
            states = states if correction is None else states.index_copy(0, places, own)
        if correction is not None:
            (tokens,) = to_device(self.device, np.array(frontier.tokens, dtype=np.int64))
            logits = correction.corrected(logits, block.marginals.ids, tokens, states)
        if beyond:
            logits = logits.index_fill(0, to_device(self.device, np.array(beyond))[0], 0)
        return Prediction(logits, positions, block.marginals.ids)

    def _beyond(self, state: _BlockSession, frontier: Frontier) -> list[int]:
        """The places of the nodes below which nothing is predicted."""
        return [place for place, node in enumerate(frontier.nodes) if self._is_beyond(state, node)]
