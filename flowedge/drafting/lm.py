"""Drafting with a small language model that has the target's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.errors import CapacityError
from flowedge.core.messages import CONTEXT
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import ROOT, DraftLayer
from flowedge.drafting.prediction import Prediction
from flowedge.drafting.ranking import ranked
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.head import LMHead
from flowedge.models.layers.taps import Taps

SCRATCH_ROWS = 512  # rows of one growth that fit before the cache has to be enlarged


@dataclass
class _LMNode:
    """A draft node that has been computed.

    Attributes:
        row: its row in the cache; depth: below the root.
        hidden: [hidden], the final hidden state, which predicts its children.
    """

    row: int
    depth: int
    hidden: torch.Tensor


@dataclass
class _LMSession:
    """One session's cache: a row for each known token, then the scratch of one growth.

    Attributes:
        predicted: [rows, hidden], the final hidden state of each known token.
        waiting: known tokens, at the end, that are not computed yet.
        root: final hidden state of the last known token; None when it is not known.
        tail_parents: of each scratch row, CONTEXT for a child of the root.
        names: of the growth's computed nodes, by their parent's name and their token.
    """

    cache: SessionCache
    predicted: torch.Tensor
    capacity: int
    waiting: list[int]
    noise: SamplingParams | None = None
    cached: int = 0
    root: torch.Tensor | None = None
    growth: int | None = None
    tail_parents: list[int] = field(default_factory=list)
    nodes: dict[int, _LMNode] = field(default_factory=dict)
    names: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def true_rows(self) -> int:
        return self.cached + len(self.waiting) - 1

    def forget_growth(self) -> None:
        self.growth = None
        self.tail_parents, self.nodes, self.names = [], {}, {}

    def computed_path(self, tokens: Sequence[int]) -> list[_LMNode]:
        """The nodes of the growth that lead along these tokens from its root, as far as they are computed."""
        path: list[_LMNode] = []
        name = ROOT
        for token in tokens:
            below = self.names.get((name, token))
            if below is None:
                break
            path.append(self.nodes[below])
            name = below
        return path


class LMDrafter:
    """A Drafter over all layers of a causal language model.

    The rows of a branch are computed once: when the root moves down it, they become true rows by a gather.
    """

    needs_features = False
    taps: Taps = ()

    def __init__(self, block: LayerBlock, lm_head: LMHead, vocab_size: int, fingerprint: str) -> None:
        """block: all layers, with embedding and final norm; vocab_size: the target's number of tokens.

        Tokens that the target does not have are never proposed. One that the model does not have, which can
        only be padding of the target's vocabulary, is read as its token 0.
        """
        self.fingerprint = fingerprint
        self._block = block
        self._lm_head = lm_head
        self._vocab_size = vocab_size
        self._sessions: dict[str, _LMSession] = {}

    @property
    def weight_bytes(self) -> int:
        tied = self._lm_head.weight is self._block.embedding_weight
        return self._block.weight_bytes + (0 if tied else self._lm_head.weight_bytes)

    def session_bytes(self, capacity: int) -> int:
        block = self._block
        per_row = SessionCache.bytes_per_row(block.config, block.num_layers, block.dtype)
        per_token = self._lm_head.hidden_size * block.dtype.itemsize
        return per_row * _cache_rows(capacity) + (1 + capacity) * per_token

    def open(
        self, session: str, capacity: int, first_token: int, noise: SamplingParams | None = None
    ) -> None:
        cache = self._block.new_cache(_cache_rows(capacity))
        predicted = torch.zeros((1 + capacity, self._lm_head.hidden_size), dtype=self._block.dtype)
        self._sessions[session] = _LMSession(cache, predicted, capacity, [first_token], noise)

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)

    @torch.inference_mode()
    def extend(self, session: str, features: Payload | None, next_tokens: IntArray) -> None:  # noqa: ARG002
        state, tokens = self._sessions[session], next_tokens.tolist()
        if state.true_rows + len(tokens) > state.capacity:
            raise CapacityError(f"the drafter's cache of session {session} holds {state.capacity} rows")
        kept = state.computed_path(tokens)
        if kept:
            state.cache.gather(state.cached, [node.row for node in kept])
            state.predicted[state.cached : state.cached + len(kept)] = torch.stack(
                [node.hidden for node in kept]
            )
            state.cached += len(kept)
            state.root = kept[-1].hidden
        state.forget_growth()
        state.waiting += tokens[len(kept) :]
        if state.waiting:
            rows = np.arange(state.cached, state.cached + len(state.waiting))
            parents = np.where(rows == state.cached, CONTEXT, rows - 1)
            hidden = self._forward(state, state.waiting, rows, parents)
            state.predicted[state.cached : state.cached + len(state.waiting)] = hidden
            state.cached += len(state.waiting)
            state.waiting = []
            state.root = hidden[-1].clone()

    def rewind(self, session: str, rows: int) -> None:
        state = self._sessions[session]
        if not 0 <= rows <= state.true_rows:
            raise ValueError(
                f"session {session} has {state.true_rows} true rows and cannot go back to {rows}"
            )
        state.forget_growth()
        if not state.waiting:
            state.cached, state.root = rows + 1, None

    def grow(
        self,
        session: str,
        growth: int,
        nodes: Sequence[int],
        parents: Sequence[int],
        tokens: Sequence[int],
        width: int,
    ) -> DraftLayer:
        found = self.predict(session, growth, nodes, parents, tokens)
        return ranked(found.logits, width, self._sessions[session].noise, found.positions)

    @torch.inference_mode()
    def predict(
        self,
        session: str,
        growth: int,
        nodes: Sequence[int],
        parents: Sequence[int],
        tokens: Sequence[int],
    ) -> Prediction:
        """See Predictor."""
        state = self._sessions[session]
        if growth != state.growth:
            state.forget_growth()
            if state.root is None:
                raise ValueError(f"session {session} has no true row to draft from")
            state.growth = growth
            state.nodes[ROOT] = _LMNode(state.cached - 1, 0, state.root)
        fresh = [i for i, node in enumerate(nodes) if node not in state.nodes]
        if fresh:
            self._expand(state, [(nodes[i], parents[i], tokens[i]) for i in fresh])
        asked = [state.nodes[node] for node in nodes]
        hidden = torch.stack([node.hidden for node in asked])
        logits = self._lm_head.logits(hidden)[:, : self._vocab_size]
        return Prediction(logits, [state.cached + node.depth for node in asked])

    @torch.inference_mode()
    def predict_true(self, session: str, start: int, stop: int) -> Prediction:
        """See Predictor."""
        hidden = self._sessions[session].predicted[start + 1 : stop + 1]
        logits = self._lm_head.logits(hidden)[:, : self._vocab_size]
        return Prediction(logits, list(range(start + 2, stop + 2)))

    def _expand(self, state: _LMSession, fresh: Sequence[tuple[int, int, int]]) -> None:
        """Compute nodes that are given by name, parent's name and token."""
        missing = {parent for _, parent, _ in fresh} - state.nodes.keys()
        if missing:
            raise ValueError(f"nodes {sorted(missing)} are not of growth {state.growth}")
        above = [state.nodes[parent] for _, parent, _ in fresh]
        first = state.cached + len(state.tail_parents)
        tail = state.tail_parents + [node.row if node.depth else CONTEXT for node in above]
        positions = np.array([state.cached + node.depth for node in above])
        hidden = self._forward(state, [token for _, _, token in fresh], positions, np.array(tail))
        state.tail_parents = tail
        for i, (name, parent, token) in enumerate(fresh):
            state.nodes[name] = _LMNode(first + i, above[i].depth + 1, hidden[i])
            state.names[parent, token] = name

    def _forward(
        self, state: _LMSession, tokens: Sequence[int], positions: IntArray, tail_parents: IntArray
    ) -> torch.Tensor:
        """Final hidden states [n, hidden] of n tokens, whose rows are the last of the tail."""
        stop = state.cached + len(tail_parents)
        if stop > state.cache.capacity:
            larger = self._block.new_cache(2 * stop)
            larger.kv[:, :, :, : state.cache.capacity] = state.cache.kv
            state.cache = larger
        known = [token if token < self._block.vocab_size else 0 for token in tokens]
        hidden = self._block.forward(
            torch.tensor(known),
            positions,
            state.cache,
            stop - len(tokens),
            state.cached,
            tail_parents,
            lambda: False,
        )
        assert hidden is not None
        return hidden


def _cache_rows(capacity: int) -> int:
    return 1 + capacity + SCRATCH_ROWS
