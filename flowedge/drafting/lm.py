"""Drafting with a small language model that has the target's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from flowedge.core.arrays import IntArray
from flowedge.core.errors import BadRequestError
from flowedge.core.messages import CONTEXT
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import ROOT, DraftPrefix, Frontier, GrowRequest
from flowedge.drafting.model_drafter import GrownNode, ModelDrafter, ModelSession, rows_of
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.drafting.suffix_index import SuffixIndex
from flowedge.models.attention.kv_cache import KVCache
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.host.lazy_zeros import lazy_zeros
from flowedge.models.host.payloads import to_tensor
from flowedge.models.language_model import LanguageModel
from flowedge.models.session_rows import SessionRows
from flowedge.models.taps import Taps

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

    cache: KVCache
    final_states: torch.Tensor
    waiting: list[int]
    cached: int = 0
    tail_parents: list[int] = field(default_factory=list)
    names: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def true_rows(self) -> int:
        return self.cached + len(self.waiting) - 1

    @property
    def states(self) -> torch.Tensor:
        return self.final_states

    def predictors(self, start: int, stop: int) -> torch.Tensor:
        return self.final_states[start + 1 : stop + 1]

    def truncate(self, rows: int) -> None:
        super().truncate(rows)
        del self.waiting[max(rows + 1 - self.cached, 0) :]
        self.cached = min(self.cached, rows + 1)

    def has_root_after(self, request: GrowRequest) -> bool:
        return super().has_root_after(request) or (request.next_tokens is not None and bool(self.waiting))

    def discard_growth(self) -> None:
        super().discard_growth()
        self.tail_parents, self.names = [], {}

    def add_known(self, count: int) -> None:
        """Count rows of known tokens, whose states are stored behind those that are cached."""
        self.cached += count
        self.root = GrownNode(self.cached - 1, self.cached)

    def copy_known(self, other: _LMSession, count: int) -> None:
        """Begin with the rows of the first known tokens of another session."""
        self._copy_rows(other.cache, other.final_states, count)
        self.waiting = []
        self.add_known(count)

    def _copy_rows(self, cache: KVCache, states: torch.Tensor, rows: int) -> None:
        self.cache.store.copy(cache.store, 0, slice(0, rows))
        self.final_states[:rows] = states[:rows]

    def enlarge(self, block: LayerBlock, rows: int) -> None:
        """Make room for a growth of more than SCRATCH_ROWS nodes."""
        cache, states = self.cache, self.final_states
        self.cache, self.final_states = block.new_cache(rows), states.new_zeros((rows, states.shape[1]))
        self._copy_rows(cache, states, len(states))

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


def check_can_draft(checkpoint: Checkpoint) -> None:
    """Check that a language model can draft.

    Raises:
        BadRequestError: when it has recurrent layers, whose states cannot go back to an earlier row.
    """
    if checkpoint.architecture.recurrence is not None:
        raise BadRequestError(
            f"{checkpoint.place} has recurrent layers and cannot draft, since a draft is taken back and a "
            "state is not; use a drafter with attention alone, a trained head, or ngram"
        )


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
        super().__init__(proposals or ProposalHead(model.lm_head, vocab_size=model.vocab_size))
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
        self,
        session: str,
        capacity: int,
        first_token: int,
        noise: SamplingParams | None = None,
        prefix: DraftPrefix | None = None,
        earlier: SuffixIndex | None = None,  # noqa: ARG002 (for lookup)
    ) -> None:
        source, copied = self._source(prefix, capacity, first_token)
        block, rows = self._block, _cache_rows(capacity)
        state = _LMSession(
            capacity=capacity,
            first_token=first_token,
            noise=noise,
            cache=block.new_cache(rows),
            final_states=lazy_zeros((rows, block.hidden_size), block.dtype, block.device),
            waiting=[first_token],
        )
        self._copy_tokens(state, source, copied)
        if source is not None:
            state.copy_known(source, copied + 1)
        self._begin(session, state)

    def free_idle(self) -> None:
        if self._block.decoding is not None:
            self._block.decoding.free()

    def _new_known(self, state: _LMSession, next_tokens: IntArray) -> _NewRows:
        """Note tokens that follow the text, and return those that are not computed as a branch."""
        tokens = next_tokens.tolist()
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
        slots = np.arange(state.cached, state.cached + len(state.waiting))
        parents = np.where(slots == state.cached, CONTEXT, slots - 1)
        return _NewRows(state, list(state.waiting), slots, parents)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._proposals.logits(hidden)

    @property
    def _ids(self) -> torch.Tensor | None:
        return self._proposals.ids

    def _compute(
        self, extended: Sequence[tuple[_LMSession, GrowRequest]], grown: Sequence[tuple[_LMSession, Frontier]]
    ) -> None:
        parts: list[_NewRows] = []
        for state, request in extended:
            assert request.next_tokens is not None, "as chosen"
            parts.append(self._new_known(state, request.next_tokens))
        self._compute_parts(parts + [_new_nodes(state, frontier) for state, frontier in grown])

    def _compute_parts(self, parts: Sequence[_NewRows]) -> None:
        """Compute rows of several sessions, and count them to what the sessions know or have grown."""
        computed = [part for part in parts if part.tokens]
        for part in computed:
            if part.stop > part.state.cache.capacity:
                part.state.enlarge(self._block, 2 * part.stop)
        for part, hidden in zip(computed, self._forward_parts(computed), strict=True):
            part.state.final_states[part.stop - len(part.tokens) : part.stop] = hidden
            part.take_in()

    def _forward_parts(self, parts: Sequence[_NewRows]) -> list[torch.Tensor]:
        """The final hidden states [n, hidden] of the rows of each part."""
        rows = [
            SessionRows(
                to_tensor(self._model.known(np.array(part.tokens))),
                part.positions,
                part.state.cache,
                part.stop - len(part.tokens),
                part.state.cached,
                part.tail_parents,
            )
            for part in parts
        ]
        hidden = self._block.forward_together(rows, lambda: False)
        assert hidden is not None, "nothing aborts it"
        return hidden


@dataclass(frozen=True, eq=False)
class _NewRows:
    """Rows of a session that are to be computed: of known tokens, or of nodes of its growth.

    Attributes:
        positions: int64 [n]; tail_parents: as LayerBlock.forward takes them, int64 [tail].
        nodes: the nodes, each a name, its parent's name and a token; empty for known tokens.
    """

    state: _LMSession
    tokens: list[int]
    positions: IntArray
    tail_parents: IntArray
    nodes: Sequence[tuple[int, int, int]] = ()

    @property
    def stop(self) -> int:
        """The row behind the last."""
        return self.state.cached + len(self.tail_parents)

    def take_in(self) -> None:
        """Count the rows, which are computed, to those of the session."""
        state = self.state
        if not self.nodes:
            state.add_known(len(self.tokens))
            state.waiting = []
            return
        state.tail_parents = self.tail_parents.tolist()
        for row, (name, parent, token) in enumerate(self.nodes, self.stop - len(self.tokens)):
            state.nodes[name] = state.nodes[parent].child(row)
            state.names[parent, token] = name


def _new_nodes(state: _LMSession, frontier: Frontier) -> _NewRows:
    """The nodes of a frontier that are not computed yet."""
    every = zip(frontier.nodes, frontier.parents, frontier.tokens, strict=True)
    fresh = [each for each in every if each[0] not in state.nodes]
    below: dict[int, GrownNode] = {}  # the nodes of this frontier, which may have others of it as parents
    parents: list[GrownNode] = []
    for row, (name, parent, _) in enumerate(fresh, state.cached + len(state.tail_parents)):
        parents.append(below[parent] if parent in below else state.known(parent))
        below[name] = parents[-1].child(row)
    tail = state.tail_parents + [node.path[-1] if node.path else CONTEXT for node in parents]
    positions = np.array([node.position for node in parents])
    return _NewRows(state, [token for _, _, token in fresh], positions, np.array(tail), fresh)


def _cache_rows(capacity: int) -> int:
    return 1 + capacity + SCRATCH_ROWS
