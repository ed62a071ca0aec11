"""What drafters over a head made for one target have in common."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import DraftPrefix, GrowRequest
from flowedge.drafting.heads.draft_head import DraftHead
from flowedge.drafting.heads.head_rows import TrueRows
from flowedge.drafting.heads.head_store import HeadSizes, HeadStore
from flowedge.drafting.model_drafter import ModelDrafter, ModelSession
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.drafting.suffix_index import SuffixIndex
from flowedge.models.host.copies import to_device, to_host
from flowedge.models.lm_head import LMHead
from flowedge.models.quant.quantize import module_bytes
from flowedge.models.taps import Taps


@dataclass(kw_only=True)
class StoreSession(ModelSession):
    """A session whose store has a row for each true row, then rows for drafts."""

    store: HeadStore
    true_rows: int = 0

    @property
    def states(self) -> torch.Tensor:
        return self.store.states

    def predictors(self, start: int, stop: int) -> torch.Tensor:
        return self.store.states[start:stop]

    def truncate(self, rows: int) -> None:
        super().truncate(rows)
        self.true_rows = rows

    @abstractmethod
    def set_true_rows(self, rows: int) -> None:
        """Count true rows, which are stored, and let trees begin behind the last of them."""


S = TypeVar("S", bound=StoreSession)


class StoreDrafter(ModelDrafter[S]):
    """A Drafter over a head that reads the target's hidden states, and keeps its own of true rows."""

    needs_features = True

    def __init__(
        self,
        head: DraftHead,
        lm_head: LMHead,
        embedding: nn.Embedding,
        taps: Taps,
        proposals: ProposalHead | None,
        *,
        layers: int = 1,
        recalls: bool = False,
    ) -> None:
        """Draft with a head for the target whose LM head is `lm_head`.

        Args:
            embedding: the target's embedding, or the head's own.
            taps: the target's layers whose inputs the features contain.
            proposals: over `lm_head`, which it replaces; for heads without an LM head of their own.
            layers: of the head; recalls: as of HeadSizes.
        """
        super().__init__(proposals or ProposalHead(lm_head))
        self.taps = taps
        self._model, self._embedding = head, embedding
        norm = next(parameter for parameter in head.parameters() if parameter.ndim == 1)  # never quantised
        self._sizes = HeadSizes.of(head.config, norm.dtype, norm.device, recalls, layers)
        self.device = norm.device
        vocabulary = head.vocabulary
        self._columns = None if vocabulary is None else to_device(self.device, vocabulary)[0]

    @abstractmethod
    def _new_session(
        self, capacity: int, first_token: int, noise: SamplingParams | None, store: HeadStore
    ) -> S:
        """A session without rows."""

    @property
    @abstractmethod
    def _draft_rows(self) -> int:
        """The rows behind those of a session's capacity that its store has at first."""

    def _new_store(self, rows: int) -> HeadStore:
        return HeadStore(self._sizes, rows)

    @property
    def can_learn(self) -> bool:
        return self._columns is None

    @property
    def weight_bytes(self) -> int:
        shared = {id(parameter) for parameter in (*self._model.parameters(), self._proposals.exact.weight)}
        own = 0 if id(self._embedding.weight) in shared else module_bytes(self._embedding)
        return module_bytes(self._model) + own + self._proposals.copied_bytes

    @property
    def fingerprint(self) -> str:
        recalled = "+recall" if self._sizes.recalls else ""
        return self._digest + recalled + self._proposals.fingerprint

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self._model.state_dict().items()):
            (content,) = to_host(tensor)
            digest.update(name.encode() + content.tobytes())
        return digest.hexdigest()

    def session_bytes(self, capacity: int) -> int:
        return (capacity + self._draft_rows) * self._sizes.row_bytes + self._proposals.session_bytes

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
        store = self._new_store(capacity + self._draft_rows)
        state = self._new_session(capacity, first_token, noise, store)
        self._copy_tokens(state, source, copied)
        if source is not None:
            store.copy_rows(source.store, copied)
            state.set_true_rows(copied)
        self._begin(session, state)

    def _take_back(self, store: HeadStore) -> None:
        """Dispose of the store of a session that is closed."""

    def close(self, session: str) -> None:
        state = self._sessions.get(session) or self._kept.get(session)
        super().close(session)
        if state is not None:
            self._take_back(state.store)
        self._rest()

    def check_request(self, request: GrowRequest) -> None:
        super().check_request(request)
        if request.next_tokens is not None and request.features is None:
            raise ValueError(f"session {request.session}: a draft head drafts from features")

    def _true_rows(self, extended: Sequence[tuple[S, GrowRequest]]) -> list[tuple[S, TrueRows]]:
        """Note the tokens that follow the texts of sessions, and return the rows of those that have any."""
        found: list[tuple[S, TrueRows]] = []
        for state, request in extended:
            assert request.features is not None and request.next_tokens is not None, "as checked"
            state.discard_growth()
            if len(request.next_tokens):
                rows = TrueRows.at(state.true_rows, request.features, np.asarray(request.next_tokens))
                self._note(state, rows.first, rows.tokens)
                found.append((state, rows))
        return found

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.draft_logits(hidden, self._proposals)

    @property
    def _ids(self) -> torch.Tensor | None:
        return self._proposals.ids if self._columns is None else self._columns
