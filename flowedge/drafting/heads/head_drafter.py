"""What drafters with a one-layer head over the target's features share: sessions, caches and growths."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.errors import CapacityError
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import ROOT, DraftLayer
from flowedge.drafting.heads.eagle_head import KeyValueViews
from flowedge.drafting.heads.recall import Recall
from flowedge.drafting.prediction import Prediction
from flowedge.drafting.ranking import ranked
from flowedge.models.layers.cache import head_size
from flowedge.models.layers.head import LMHead
from flowedge.models.layers.taps import Taps
from flowedge.models.layers.tensors import to_tensor
from flowedge.models.quant.quantize import module_bytes

SCRATCH_ROWS = 512  # rows of one growth that fit before the buffer has to be enlarged


@dataclass
class _HeadNode:
    """A draft node whose feature is known.

    Attributes:
        feature: [hidden], the predicted feature of its token's position.
        position: RoPE position of the row that predicted it.
        rows: scratch rows of the node and its draft ancestors; empty for the root, whose row is a true one.
    """

    feature: torch.Tensor
    position: int
    rows: tuple[int, ...]


@dataclass
class _HeadSession:
    """One session's buffer [2, kv_heads, rows, head_dim]: true rows first, then the scratch of one growth.

    Attributes:
        predicted: [rows, hidden], the feature that each true row predicts, which `predict_true` reads.
    """

    kv: torch.Tensor
    predicted: torch.Tensor
    capacity: int
    noise: SamplingParams | None = None
    recall: Recall | None = None
    true_rows: int = 0
    root: _HeadNode | None = None
    growth: int | None = None
    scratch_rows: int = 0
    nodes: dict[int, _HeadNode] = field(default_factory=dict)

    def forget_growth(self) -> None:
        self.growth = None
        self.scratch_rows = 0
        self.nodes = {}

    def views(self, stop: int) -> KeyValueViews:
        """The buffer's rows below `stop`; it is enlarged, rarely, for a growth beyond what was planned."""
        if stop > self.kv.shape[2]:
            self.kv = torch.cat((self.kv, torch.zeros_like(self.kv[:, :, :stop])), dim=2)
        return KeyValueViews(self.kv[0, :, :stop], self.kv[1, :, :stop])


class HeadDrafter(ABC):
    """A Drafter that predicts features; its methods' arguments are those of the protocol.

    Row t of a session's cache pairs feature[t] with token[t + 1]. Only true features are kept; the rows of
    speculative branches are scratch beyond them, overwritten by the next growth or extension.
    """

    needs_features = True

    def __init__(
        self, head: nn.Module, config: Any, lm_head: LMHead, embedding: nn.Embedding, recalls: bool = False
    ) -> None:
        """A head whose `forward` is that of EagleHead.

        config: the head's; lm_head: the target's; embedding: the target's, or the head's own.
        recalls: whether it is corrected by its own errors (see recall.py), which takes a head that predicts
        what it is given.
        """
        self._head = head
        self._lm_head = lm_head
        self._embedding = embedding
        self._sessions: dict[str, _HeadSession] = {}
        self._kv_heads = int(config.num_key_value_heads or config.num_attention_heads)
        self._head_dim = head_size(config)
        self._dtype = next(head.parameters()).dtype
        self._hidden_size = int(config.hidden_size)
        self._recalls = recalls

    @property
    @abstractmethod
    def taps(self) -> Taps:
        """See Drafter."""

    @abstractmethod
    def _features(self, rows: torch.Tensor) -> torch.Tensor:
        """What the head takes, [n, hidden], of rows [n, width] from the last stage in the head's dtype."""

    @abstractmethod
    def _logits(self, features: torch.Tensor) -> torch.Tensor:
        """Logits [f, columns] after each predicted feature [f, hidden]."""

    @property
    def _ids(self) -> IntArray | None:
        """The target's tokens that the columns of the logits stand for; None where they are the same."""
        return None

    @property
    def weight_bytes(self) -> int:
        shared = {id(parameter) for parameter in (*self._head.parameters(), self._lm_head.weight)}
        own = 0 if id(self._embedding.weight) in shared else module_bytes(self._embedding)
        return module_bytes(self._head) + own

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self._head.state_dict().items()):
            digest.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest() + ("+recall" if self._recalls else "")

    @staticmethod
    def feature_bytes(hidden: int, dtype: torch.dtype, recalls: bool) -> int:
        """What a session keeps of each true row beside its KV."""
        return hidden * dtype.itemsize + (Recall.row_bytes(hidden, dtype) if recalls else 0)

    def session_bytes(self, capacity: int) -> int:
        kv = math.prod(self._kv_shape(capacity)) * self._dtype.itemsize
        return kv + capacity * self.feature_bytes(self._hidden_size, self._dtype, self._recalls)

    def open(
        self,
        session: str,
        capacity: int,
        first_token: int,  # noqa: ARG002 (rows begin with the second)
        noise: SamplingParams | None = None,
    ) -> None:
        """Allocate the buffer for `capacity` true rows and a growth."""
        kv = torch.zeros(self._kv_shape(capacity), dtype=self._dtype)
        predicted = torch.zeros((capacity, self._hidden_size), dtype=self._dtype)
        recall = Recall(capacity, self._hidden_size, self._dtype) if self._recalls else None
        self._sessions[session] = _HeadSession(kv, predicted, capacity, noise, recall)

    def close(self, session: str) -> None:
        """Free the buffer; an unknown session is ignored."""
        self._sessions.pop(session, None)

    def rewind(self, session: str, rows: int) -> None:
        state = self._sessions[session]
        if not 0 <= rows <= state.true_rows:
            raise ValueError(
                f"session {session} has {state.true_rows} true rows and cannot go back to {rows}"
            )
        state.forget_growth()
        state.true_rows, state.root = rows, None

    @torch.inference_mode()
    def extend(self, session: str, features: Payload | None, next_tokens: IntArray) -> None:
        """Commit one row per pair (feature[t], token[t + 1]), in order; see Drafter.

        Raises ValueError without features.
        """
        if features is None:
            raise ValueError("an EAGLE head drafts from features")
        state = self._sessions[session]
        state.forget_growth()
        start, stop = state.true_rows, state.true_rows + len(next_tokens)
        if stop > state.capacity:
            raise CapacityError(f"the drafter's cache of session {session} holds {state.capacity} rows")
        if start == stop:
            return
        positions = torch.arange(start, stop)
        mask = torch.arange(stop)[None] <= positions[:, None]
        given = self._features(to_tensor(features).to(self._dtype))
        predicted = self._forward(state, np.asarray(next_tokens), given, positions, mask)
        if state.recall is not None:
            predicted = state.recall.extend(start, given, predicted)
        state.predicted[start:stop] = predicted
        state.true_rows = stop
        state.root = _HeadNode(predicted[-1].clone(), stop - 1, ())

    def grow(
        self,
        session: str,
        growth: int,
        nodes: Sequence[int],
        parents: Sequence[int],
        tokens: Sequence[int],
        width: int,
    ) -> DraftLayer:
        """See Drafter."""
        found = self.predict(session, growth, nodes, parents, tokens)
        return ranked(found.logits, width, self._sessions[session].noise, found.positions, found.ids)

    @torch.inference_mode()
    def predict(
        self,
        session: str,
        growth: int,
        nodes: Sequence[int],
        parents: Sequence[int],
        tokens: Sequence[int],
    ) -> Prediction:
        """See Predictor.

        The root needs no forward: the last true row, which pairs the latest feature with the root's token,
        has predicted its feature already.
        """
        state = self._sessions[session]
        if growth != state.growth:
            state.forget_growth()
            state.growth = growth
        if list(nodes) == [ROOT]:
            if state.root is None:
                raise ValueError(f"session {session} has no feature to draft from")
            state.nodes[ROOT] = state.root
        else:
            self._expand(state, nodes, parents, tokens)
        asked = [state.nodes[node] for node in nodes]
        logits = self._logits(torch.stack([node.feature for node in asked]))
        # Row t stands for token[t + 1], so what is drawn after it is token[t + 2].
        return Prediction(logits, [node.position + 2 for node in asked], self._ids)

    @torch.inference_mode()
    def predict_true(self, session: str, start: int, stop: int) -> Prediction:
        """See Predictor."""
        logits = self._logits(self._sessions[session].predicted[start:stop])
        return Prediction(logits, list(range(start + 2, stop + 2)), self._ids)

    def _expand(
        self, state: _HeadSession, nodes: Sequence[int], parents: Sequence[int], tokens: Sequence[int]
    ) -> None:
        """Compute the features of the frontier nodes, each from its token and its parent's feature."""
        missing = set(parents) - state.nodes.keys()
        if missing:
            raise ValueError(f"nodes {sorted(missing)} are not of growth {state.growth}")
        above = [state.nodes[parent] for parent in parents]
        first = state.true_rows + state.scratch_rows
        stop = first + len(nodes)
        paths = [(*parent.rows, first + i) for i, parent in enumerate(above)]
        mask = torch.zeros((len(nodes), stop), dtype=torch.bool)
        mask[:, : state.true_rows] = True
        for i, path in enumerate(paths):
            mask[i, list(path)] = True
        positions = torch.tensor([parent.position + 1 for parent in above])
        features = torch.stack([parent.feature for parent in above])
        predicted = self._forward(state, np.asarray(tokens, dtype=np.int64), features, positions, mask)
        if state.recall is not None:
            predicted = state.recall.corrected(predicted, state.true_rows - 1)
        state.scratch_rows += len(nodes)
        for i, node in enumerate(nodes):
            state.nodes[node] = _HeadNode(predicted[i], int(positions[i]), paths[i])

    def _forward(
        self,
        state: _HeadSession,
        tokens: IntArray,
        features: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        embedded = self._embedding(torch.from_numpy(tokens)).to(self._dtype)
        predicted: torch.Tensor = self._head(embedded, features, positions, state.views(mask.shape[1]), mask)
        return predicted

    def _kv_shape(self, capacity: int) -> tuple[int, int, int, int]:
        return 2, self._kv_heads, capacity + SCRATCH_ROWS, self._head_dim
