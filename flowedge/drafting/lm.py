"""Drafting with a small language model that has the target's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.messages import CONTEXT
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import ROOT, Frontier
from flowedge.drafting.model_drafter import GrownNode, ModelDrafter, ModelSession, rows_of
from flowedge.drafting.vocabulary.proposal_head import ProposalHead
from flowedge.drafting.vocabulary.seen_tokens import seen_by
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.language_model import LanguageModel
from flowedge.models.layers.taps import Taps
from flowedge.models.layers.tensors import to_tensor

SCRATCH_ROWS = 512  # rows for the nodes of a growth; a larger growth enlarges the cache


@dataclass(kw_only=True)
class _LMSession(ModelSession):
    """A session whose cache has a row for each known token, then rows for the nodes of a growth.

    Attributes:
        final_states: [rows, hidden], the final hidden state of each row of the cache.
        cached: the number of known tokens with a row in the cache.
        waiting: the known tokens that follow, which are not computed yet.
        tail_parents: the parent of each node's row, CONTEXT for a child of the root.
        names: the computed nodes of the growth, by their parent's name and their token.
    """

    cache: SessionCache
    final_states: torch.Tensor
    waiting: list[int]
    cached: int = 0
    tail_parents: list[int] = field(default_factory=list)
    names: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def true_rows(self) -> int:
        return self.cached + len(self.waiting) - 1

    def predictors(self, start: int, stop: int) -> torch.Tensor:
        return self.final_states[start + 1 : stop + 1]

    def truncate(self, rows: int) -> None:
        if not self.waiting:
            self.cached, self.root = rows + 1, None
        if self.seen is not None:
            self.seen.truncate(rows)

    def discard_growth(self) -> None:
        super().discard_growth()
        self.tail_parents, self.names = [], {}

    def add_known(self, count: int) -> None:
        """Count rows of known tokens, whose states are stored behind those that are cached."""
        self.cached += count
        self.root = GrownNode(self.cached - 1, self.cached)

    def enlarge(self, block: LayerBlock, rows: int) -> None:
        """Make room for a growth of more than SCRATCH_ROWS nodes."""
        larger, states = block.new_cache(rows), self.final_states
        larger.kv[:, :, :, : self.cache.capacity] = self.cache.kv
        self.final_states = states.new_zeros((rows, states.shape[1]))
        self.final_states[: len(states)] = states
        self.cache = larger

    def computed_path(self, tokens: Sequence[int]) -> list[GrownNode]:
        """The nodes of the growth along these tokens from the root, up to the first that is not computed."""
        path: list[GrownNode] = []
        name = ROOT
        for token in tokens:
            below = self.names.get((name, token))
            if below is None:
                break
            path.append(self.nodes[below])
            name = below
        return path


class LMDrafter(ModelDrafter[_LMSession]):
    """A Drafter over all layers of a causal language model.

    The rows of a branch are computed once: when its tokens are accepted, they are moved to the true rows.
    """

    needs_features = False
    taps: Taps = ()

    def __init__(self, model: LanguageModel, proposals: ProposalHead | None = None) -> None:
        """Draft with a model that predicts the target's tokens; no other token is ever proposed.

        Args:
            proposals: over the model's own LM head, which it replaces.
        """
        super().__init__(proposals or ProposalHead(model.head, vocab_size=model.vocab_size))
        self._model = model
        self._block = model.block

    @property
    def fingerprint(self) -> str:
        return self._model.fingerprint + self._proposals.fingerprint

    @property
    def weight_bytes(self) -> int:
        return self._model.weight_bytes + self._proposals.copied_bytes

    def close(self, session: str) -> None:
        super().close(session)
        self._rest()

    def session_bytes(self, capacity: int) -> int:
        block = self._block
        row = block.cache_row_bytes + block.hidden_size * block.dtype.itemsize
        return row * _cache_rows(capacity) + self._proposals.session_bytes

    def open(
        self, session: str, capacity: int, first_token: int, noise: SamplingParams | None = None
    ) -> None:
        block, rows = self._block, _cache_rows(capacity)
        self._sessions[session] = _LMSession(
            capacity=capacity,
            noise=noise,
            cache=block.new_cache(rows),
            final_states=torch.zeros((rows, block.hidden_size), dtype=block.dtype, device=block.device),
            waiting=[first_token],
            seen=seen_by(self._proposals),
        )

    def free_idle(self) -> None:
        if self._block.decoding is not None:
            self._block.decoding.free()

    @torch.inference_mode()
    def extend(self, session: str, features: Payload | None, next_tokens: IntArray) -> None:  # noqa: ARG002
        tokens = next_tokens.tolist()
        state = self._with_capacity(session, len(tokens))
        self._note(state, state.true_rows, next_tokens)
        computed = state.computed_path(tokens)
        if computed:
            rows = [node.row for node in computed]
            state.cache.gather(state.cached, rows)
            known = rows_of(state.final_states, rows).clone()  # both places may overlap
            state.final_states[state.cached : state.cached + len(rows)] = known
            state.add_known(len(rows))
        state.discard_growth()
        state.waiting += tokens[len(computed) :]
        if state.waiting:
            slots = np.arange(state.cached, state.cached + len(state.waiting))
            parents = np.where(slots == state.cached, CONTEXT, slots - 1)
            self._forward(state, state.waiting, slots, parents)
            state.add_known(len(state.waiting))
            state.waiting = []

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._proposals.logits(hidden)

    @property
    def _ids(self) -> torch.Tensor | None:
        return self._proposals.ids

    def _compute(self, state: _LMSession, frontier: Frontier) -> tuple[torch.Tensor, torch.Tensor | None]:
        every = zip(frontier.nodes, frontier.parents, frontier.tokens, strict=True)
        fresh = [each for each in every if each[0] not in state.nodes]
        if fresh:
            self._compute_nodes(state, fresh)
        rows = [state.nodes[node].row for node in frontier.nodes]
        return rows_of(state.final_states, rows), None

    def _compute_nodes(self, state: _LMSession, fresh: Sequence[tuple[int, int, int]]) -> None:
        """Compute nodes, each a name, its parent's name and a token."""
        parents = state.parents([parent for _, parent, _ in fresh])
        first = state.cached + len(state.tail_parents)
        tail = state.tail_parents + [node.path[-1] if node.path else CONTEXT for node in parents]
        positions = np.array([node.position for node in parents])
        self._forward(state, [token for _, _, token in fresh], positions, np.array(tail))
        state.tail_parents = tail
        for i, (name, parent, token) in enumerate(fresh):
            row = first + i
            state.nodes[name] = GrownNode(row, parents[i].position + 1, (*parents[i].path, row))
            state.names[parent, token] = name

    def _forward(
        self, state: _LMSession, tokens: Sequence[int], positions: IntArray, tail_parents: IntArray
    ) -> None:
        """Store the final hidden states of n tokens, whose rows are the last rows of the tail."""
        stop = state.cached + len(tail_parents)
        if stop > state.cache.capacity:
            state.enlarge(self._block, 2 * stop)
        hidden = self._block.forward(
            to_tensor(self._model.known(np.array(tokens))),
            positions,
            state.cache,
            stop - len(tokens),
            state.cached,
            tail_parents,
            lambda: False,
        )
        assert hidden is not None
        state.final_states[stop - len(tokens) : stop] = hidden


def _cache_rows(capacity: int) -> int:
    return 1 + capacity + SCRATCH_ROWS
