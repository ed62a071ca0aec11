"""Drafting with an EAGLE head over the target's hidden states."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import nn

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import ROOT, Frontier
from flowedge.drafting.heads.draft_head import DraftHead, KeyValueViews
from flowedge.drafting.heads.recall import Recall
from flowedge.drafting.model_drafter import GrownNode, ModelDrafter, ModelSession
from flowedge.models.copies import to_device, to_host
from flowedge.models.kv.store import head_size
from flowedge.models.layers.head import LMHead
from flowedge.models.layers.taps import Taps
from flowedge.models.quant.quantize import module_bytes

SCRATCH_ROWS = 512  # rows for the nodes of a growth; a larger growth enlarges the buffer


@dataclass(kw_only=True)
class _HeadSession(ModelSession):
    """A session's buffer: a row for each true row, then rows for the nodes of a growth.

    Attributes:
        kv: [2, kv_heads, rows, head_dim], keys at index 0 and values at 1.
        predicted: [true rows, hidden], the state that each true row predicts.
        scratch_rows: the number of rows of the growth.
    """

    kv: torch.Tensor
    predicted: torch.Tensor
    recall: Recall | None
    true_rows: int = 0
    scratch_rows: int = 0

    def predictors(self, start: int, stop: int) -> torch.Tensor:
        return self.predicted[start:stop]

    def truncate(self, rows: int) -> None:
        self.true_rows, self.root = rows, None

    def discard_growth(self) -> None:
        super().discard_growth()
        self.scratch_rows = 0

    def views(self, stop: int) -> KeyValueViews:
        """The buffer's rows below `stop`. A growth of more than SCRATCH_ROWS nodes enlarges the buffer."""
        if stop > self.kv.shape[2]:
            self.kv = torch.cat((self.kv, torch.zeros_like(self.kv[:, :, :stop])), dim=2)
        return KeyValueViews(self.kv[0, :, :stop], self.kv[1, :, :stop])


class HeadDrafter(ModelDrafter[_HeadSession]):
    """A Drafter that predicts the target's states; only true states are kept beyond a growth."""

    needs_features = True

    def __init__(
        self,
        head: DraftHead,
        lm_head: LMHead,
        embedding: nn.Embedding,
        taps: Taps = (),
        recalls: bool = False,
    ) -> None:
        """Draft with a head for the target whose LM head is `lm_head`.

        Args:
            embedding: the target's embedding, or the head's own.
            taps: the target's layers whose inputs the head reads.
            recalls: whether predictions are corrected by the head's own errors (see recall.py); possible for
                EAGLE-1/2 heads, which predict the same states that they read.
        """
        super().__init__()
        self.head = head
        self.taps = taps
        self._lm_head = lm_head
        self._embedding = embedding
        self._kv_heads = int(head.config.num_key_value_heads or head.config.num_attention_heads)
        self._head_dim = head_size(head.config)
        first = next(head.parameters())
        self._dtype, self._device = first.dtype, first.device
        self._hidden_size = int(head.config.hidden_size)
        self._recalls = recalls
        vocabulary = head.vocabulary
        self._columns = None if vocabulary is None else to_device(self._device, vocabulary)[0]

    @property
    def weight_bytes(self) -> int:
        shared = {id(parameter) for parameter in (*self.head.parameters(), self._lm_head.weight)}
        own = 0 if id(self._embedding.weight) in shared else module_bytes(self._embedding)
        return module_bytes(self.head) + own

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self.head.state_dict().items()):
            (content,) = to_host(tensor)
            digest.update(name.encode() + content.tobytes())
        return digest.hexdigest() + ("+recall" if self._recalls else "")

    @staticmethod
    def feature_bytes(hidden: int, dtype: torch.dtype, recalls: bool) -> int:
        """The bytes that a session keeps of each true row beside its keys and values."""
        return hidden * dtype.itemsize + (Recall.row_bytes(hidden, dtype) if recalls else 0)

    def session_bytes(self, capacity: int) -> int:
        kv = math.prod(self._kv_shape(capacity)) * self._dtype.itemsize
        return kv + capacity * self.feature_bytes(self._hidden_size, self._dtype, self._recalls)

    def open(
        self,
        session: str,
        capacity: int,
        first_token: int,  # noqa: ARG002 (true rows begin with the second)
        noise: SamplingParams | None = None,
    ) -> None:
        self._sessions[session] = _HeadSession(
            capacity=capacity,
            noise=noise,
            kv=torch.zeros(self._kv_shape(capacity), dtype=self._dtype, device=self._device),
            predicted=torch.zeros((capacity, self._hidden_size), dtype=self._dtype, device=self._device),
            recall=Recall(capacity, self._hidden_size, self._dtype, self._device) if self._recalls else None,
        )

    @torch.inference_mode()
    def extend(self, session: str, features: Payload | None, next_tokens: IntArray) -> None:
        if features is None:
            raise ValueError("an EAGLE head drafts from features")
        state = self._with_capacity(session, len(next_tokens))
        state.discard_growth()
        start, stop = state.true_rows, state.true_rows + len(next_tokens)
        if start == stop:
            return
        rows, tokens = to_device(self._device, features, np.asarray(next_tokens))
        positions = torch.arange(start, stop, device=self._device)
        mask = torch.arange(stop, device=self._device)[None] <= positions[:, None]
        given = self.head.true_states(rows.to(self._dtype))
        predicted = self._forward(state, tokens, given, positions, mask)
        if state.recall is not None:
            predicted = state.recall.extend(start, given, predicted)
        state.predicted[start:stop] = predicted
        state.true_rows = stop
        state.root = GrownNode(predicted[-1].clone(), stop + 1, ())

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head.draft_logits(hidden, self._lm_head)

    @property
    def _ids(self) -> torch.Tensor | None:
        return self._columns

    def _compute(self, state: _HeadSession, frontier: Frontier) -> None:
        if list(frontier.nodes) == [ROOT]:  # predicted by the last true row
            return
        parents = state.parents(frontier.parents)
        first = state.true_rows + state.scratch_rows
        stop = first + len(parents)
        paths = [(*parent.rows, first + i) for i, parent in enumerate(parents)]
        seen = np.zeros((len(parents), stop - state.true_rows), dtype=np.bool_)
        for i, path in enumerate(paths):
            seen[i, np.array(path) - state.true_rows] = True
        tokens, positions, tail = to_device(
            self._device,
            np.array(frontier.tokens, dtype=np.int64),
            # A node's row has the RoPE position of its token's predecessor.
            np.array([parent.position - 1 for parent in parents], dtype=np.int64),
            seen,
        )
        mask = torch.ones((len(parents), stop), dtype=torch.bool, device=self._device)
        mask[:, state.true_rows :] = tail
        features = torch.stack([parent.hidden for parent in parents])
        predicted = self._forward(state, tokens, features, positions, mask)
        if state.recall is not None:
            predicted = state.recall.corrected(predicted, state.true_rows - 1)
        state.scratch_rows += len(parents)
        for i, node in enumerate(frontier.nodes):
            state.nodes[node] = GrownNode(predicted[i], parents[i].position + 1, paths[i])

    def _forward(
        self,
        state: _HeadSession,
        tokens: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        embedded = self._embedding(tokens).to(self._dtype)
        predicted: torch.Tensor = self.head(embedded, features, positions, state.views(mask.shape[1]), mask)
        return predicted

    def _kv_shape(self, capacity: int) -> tuple[int, int, int, int]:
        return 2, self._kv_heads, capacity + SCRATCH_ROWS, self._head_dim
