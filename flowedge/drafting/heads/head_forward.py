"""A forward of an EAGLE head over rows of one session or of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import nn

from flowedge.drafting.heads.draft_head import CachedAttention, KeyValueViews, StepHead
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_rows import GrownRows, HeadRows, TrueRows
from flowedge.drafting.heads.head_store import HeadSizes, HeadStore
from flowedge.drafting.heads.kernel_head import KernelHead
from flowedge.drafting.heads.mtp_head import MtpHead
from flowedge.models.host.copies import HostArray, to_device
from flowedge.models.kernels.layer import NoKernelError
from flowedge.models.rotary import Angles


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows of a session, and the store that they are written to."""

    store: HeadStore
    rows: HeadRows


@dataclass(frozen=True, eq=False)
class HeadAttention:
    """The AttentionContext of rows of several sessions, each of which sees the cache of its own session.

    Attributes:
        parts: the attention of each session; bounds: its first row, and the one behind its last.
    """

    rotation: Angles
    parts: Sequence[CachedAttention]
    bounds: Sequence[tuple[int, int]]

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scaling: float | None = None,
    ) -> torch.Tensor:
        attended = [
            part.attend(
                queries[..., first:stop, :], keys[..., first:stop, :], values[..., first:stop, :], scaling
            )
            for part, (first, stop) in zip(self.parts, self.bounds, strict=True)
        ]
        return attended[0] if len(attended) == 1 else torch.cat(attended, dim=-2)


class HeadForward:
    """Computes rows of any number of sessions, each linear layer by one product."""

    def __init__(self, head: StepHead, embedding: nn.Embedding, sizes: HeadSizes) -> None:
        self._head, self._embedding, self._sizes = head, embedding, sizes
        self._kernels: KernelHead | None = None
        if isinstance(head, EagleHead | MtpHead):
            with suppress(NoKernelError):
                self._kernels = KernelHead(head)

    def compute(self, parts: Sequence[StoredRows]) -> None:
        """Compute rows, and store their keys and values and what they predict; one part a session."""
        tokens, positions, *uploaded = to_device(
            self._sizes.device,
            np.concatenate([part.rows.tokens for part in parts]),
            np.concatenate([part.rows.positions for part in parts]),
            *(array for part in parts for array in self._arrays(part.rows)),
        )
        own = iter(uploaded)
        inputs = [[next(own) for _ in self._arrays(part.rows)] for part in parts]
        states = self._states_before(parts, [each[0] for each in inputs])
        before = _joined(states)
        if self._kernels is not None:
            by_kernels = [(part.rows, part.store) for part in parts]
            predicted = self._kernels.predict(self._embedded(tokens), before, by_kernels)
        else:
            seen = [each[1] if len(each) > 1 else None for each in inputs]
            attention = self._attention(parts, before, positions, seen)
            predicted = self._head.predict(self._embedded(tokens), before, attention)
        for part, (first, stop), given in zip(parts, _bounds(parts), states, strict=True):
            part.store.states[part.rows.first : part.rows.stop] = _corrected(
                part, given, predicted[first:stop]
            )

    def _arrays(self, rows: HeadRows) -> list[HostArray]:
        """What a device is told of the rows of a session, beside tokens and positions."""
        if isinstance(rows, TrueRows):
            return [rows.given]
        assert isinstance(rows, GrownRows)
        return [rows.before] if self._kernels is not None else [rows.before, rows.seen]

    def _states_before(
        self, parts: Sequence[StoredRows], inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The states [n, hidden] before the rows of each part: given for true rows, predicted for others."""
        given = [rows for part, rows in zip(parts, inputs, strict=True) if isinstance(part.rows, TrueRows)]
        true_states: Iterator[torch.Tensor] = iter(())
        if given:
            joined = self._head.true_states(_joined(given).to(self._sizes.dtype))
            true_states = iter(torch.split(joined, [len(rows) for rows in given]))
        return [
            next(true_states)
            if isinstance(part.rows, TrueRows)
            else part.store.states.index_select(0, before)
            for part, before in zip(parts, inputs, strict=True)
        ]

    def _attention(
        self,
        parts: Sequence[StoredRows],
        like: torch.Tensor,
        positions: torch.Tensor,
        seen: Sequence[torch.Tensor | None],
    ) -> HeadAttention:
        """The attention of all rows; `seen` as in GrownRows, None for true rows."""
        rotation = self._head.rotation(like, positions)
        own = [
            CachedAttention(rotation, _cache(part), mask)
            for part, mask in zip(parts, self._masks(parts, positions, seen), strict=True)
        ]
        return HeadAttention(rotation, own, _bounds(parts))

    def _masks(
        self,
        parts: Sequence[StoredRows],
        positions: torch.Tensor,
        seen: Sequence[torch.Tensor | None],
    ) -> Iterator[torch.Tensor]:
        for part, (first, stop), own in zip(parts, _bounds(parts), seen, strict=True):
            if own is None:
                places = torch.arange(part.rows.stop, device=positions.device)
                yield places[None] <= positions[first:stop, None]
                continue
            mask = torch.ones((part.rows.count, part.rows.stop), dtype=torch.bool, device=own.device)
            mask[:, part.rows.stop - own.shape[1] :] = own
            yield mask

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._embedding(tokens)
        return embedded.to(self._sizes.dtype)


def _cache(part: StoredRows) -> KeyValueViews:
    keys, values = part.store.kv[0, :, :, : part.rows.stop]
    return KeyValueViews(keys, values)


def _corrected(part: StoredRows, given: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
    """The predictions of a session's rows, corrected by its own errors where these are stored."""
    recall, rows = part.store.recall, part.rows
    if recall is None:
        return predicted
    if isinstance(rows, GrownRows):
        return recall.corrected(predicted, rows.true_rows - 1)
    return recall.extend(rows.first, given, predicted)


def _bounds(parts: Sequence[StoredRows]) -> list[tuple[int, int]]:
    """The first row of each part among all rows, and the one behind its last."""
    stops = list(accumulate(part.rows.count for part in parts))
    return list(zip([0, *stops], stops, strict=False))


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
