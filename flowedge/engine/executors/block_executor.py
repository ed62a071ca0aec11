"""The executor of a stage, over a block of layers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from flowedge.core.arrays import IntArray
from flowedge.core.errors import FlowEdgeError, NonFiniteError, PrefixLostError, ProtocolError
from flowedge.engine.draw import Draw, DrawnRows
from flowedge.engine.executors.out_of_memory import within_memory
from flowedge.engine.finite import rows_not_finite
from flowedge.engine.jobs import (
    DropCache,
    Forward,
    ForwardBatch,
    ForwardOutcome,
    OpenCache,
    StageJob,
    StageResult,
)
from flowedge.engine.pages import PAGE_ROWS
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.models.attention.kv_cache import KVCache
from flowedge.models.block import LayerBlock
from flowedge.models.host.copies import to_device
from flowedge.models.host.payloads import payload_dtype, to_payload, to_tensor
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead
from flowedge.models.sampling.token_sampler import TokenSampler
from flowedge.models.sampling.tree_draws import tree_draws
from flowedge.models.session_rows import SessionRows
from flowedge.models.taps import Taps, tapped_values, taps_within

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _PreparedForward:
    """A forward that is ready to be computed.

    Attributes:
        carried: [n, width], what stages before this one have tapped; None where they have not.
    """

    job: Forward
    rows: SessionRows
    carried: torch.Tensor | None


class BlockExecutor:
    """A StageExecutor over a block of layers, with the caches of all its sessions.

    Attributes:
        row_width: values of a row of hidden states that it takes; handed_width: of a row that it returns.
        added_width: values that it taps.
        model: a model of a hierarchy, of which `block` has all layers or some. With the model's last layer
            each row is answered with the token that the model predicts after it. None for the target.
        head: the LM head of a last stage that draws tokens.
    """

    def __init__(
        self,
        block: LayerBlock,
        taps: Taps = (),
        model: LanguageModel | None = None,
        head: LMHead | None = None,
    ) -> None:
        """taps: those of the whole pipeline."""
        self.block = block
        self.model = model
        self.head = head
        before, behind = tapped_values(block.hidden_size, taps, block.start, block.stop)
        self.added_width, self._tapped_before = behind - before, before - block.hidden_size
        self.row_width = block.input_width + self._tapped_before
        self.handed_width = block.output_width + behind - block.hidden_size
        self._taps = taps_within(taps, block.start, block.stop)
        self._caches: dict[str, KVCache] = {}

    @property
    def weight_bytes(self) -> int:
        if self.model is not None:
            return self.model.weight_bytes
        return self.block.weight_bytes + (0 if self.head is None else self.head.weight_bytes)

    def stage_spec(self, **limits: Any) -> StageSpec:
        """Return what a stage with this executor accepts and hands on; `limits` are fields of StageSpec."""
        return StageSpec(
            is_first=self.block.is_first,
            width=self.row_width,
            tapped_before=self._tapped_before,
            carried=self.block.input_width - self.block.hidden_size,
            handed_on=self.block.output_width - self.block.hidden_size,
            vocab_size=self.block.vocab_size if self.model is None else self.model.vocab_size,
            dtype=payload_dtype(self.block.dtype),
            added_width=self.added_width,
            draws=self.head is not None,
            returns_tokens=self.model is not None and self.model.head is not None,
            layers=self._layers,
            on_demand=self.block.caches_on_demand,
            state_rows=-(-self.block.session_bytes // self.block.cache_row_bytes),
            page_saving=self.block.page_saving(PAGE_ROWS),
            sharing=self.block.most_sharing,
            **limits,
        )

    @property
    def _layers(self) -> str:
        of_middle = "" if self.model is None else " of the middle model"
        return f"layers {self.block.start} to {self.block.stop - 1}{of_middle}"

    @property
    def cache_row_bytes(self) -> int:
        return self.block.cache_row_bytes

    @property
    def cache_bytes(self) -> int:
        """The bytes of all caches allocated now, and of tensors that decoding uses for all sessions."""
        # A copy, because the compute thread may open a session meanwhile.
        return self.block.decoding_bytes + sum(cache.nbytes for cache in list(self._caches.values()))

    def drop_sessions(self) -> None:
        """Free the caches of all sessions."""
        self._caches.clear()
        self._free_static()

    def close(self) -> None:
        """Free all weights and caches, even if this is still referenced. It runs no job after that."""
        self._caches.clear()
        self.model = self.head = None
        del self.block

    def run(self, job: StageJob) -> StageResult:
        """Run one job. Returns None for a batch that was aborted.

        A session whose forward fails, because memory runs out or because the forward contradicts the session,
        has the error as its outcome; its cache is free then.

        Raises:
            CapacityError: when memory runs out for a new cache.
            PrefixLostError: when the rows are not held that a new cache begins with.
        """
        match job:
            case OpenCache():
                self._caches[job.session] = self._within_memory(job, lambda: self._new_cache(job))
            case DropCache():
                self._drop(job.session)
            case ForwardBatch():
                return self._forward(job)
        return None

    def _forward(self, batch: ForwardBatch) -> StageResult:
        results: dict[str, ForwardOutcome] = {}
        prepared: list[_PreparedForward] = []
        for forward in batch.forwards:
            try:
                prepared.append(self._within_memory(forward, partial(self._prepare, forward)))
            except FlowEdgeError as error:
                results[forward.session] = error
        for each, computed in zip(prepared, self._compute_together(prepared, batch), strict=True):
            results[each.job.session] = computed
        return [results[forward.session] for forward in batch.forwards]

    def _compute_together(
        self, prepared: list[_PreparedForward], batch: ForwardBatch
    ) -> list[ForwardOutcome]:
        """Return the results of forwards, which are computed one after the other if that fails together."""
        live = [each for each in prepared if not each.job.dead]
        outputs: dict[str, torch.Tensor] = {}
        if len(live) > 1:
            claim = f"the next rows of {len(live)} sessions together do not fit"
            rows = [each.rows for each in live]
            try:
                together = within_memory(
                    claim,
                    self.block.device,
                    lambda: self.block.forward_together(rows, lambda: batch.dead, self._taps),
                    self._free_static,
                )
            except FlowEdgeError as error:
                _log.info("%d sessions are computed one after the other: %s", len(live), error)
            else:
                if together is None:
                    return [None] * len(prepared)
                outputs = {each.job.session: output for each, output in zip(live, together, strict=True)}
        return [self._outcome(each, outputs.get(each.job.session)) for each in prepared]

    def _outcome(self, prepared: _PreparedForward, output: torch.Tensor | None) -> ForwardOutcome:
        """Return the result of a forward of a batch, computed alone if it has no output, or its error."""
        job = prepared.job
        try:
            return self._within_memory(
                job,
                lambda: self._compute(prepared) if output is None else self._conclude(prepared, output),
            )
        except FlowEdgeError as error:
            return error

    def _within_memory(self, job: OpenCache | Forward, run: Callable[[], T]) -> T:
        claim = f"the next rows of session {job.session} do not fit"
        return within_memory(claim, self.block.device, run, lambda: self._free(job.session))

    def _drop(self, session: str) -> None:
        self._caches.pop(session, None)

    def _free(self, session: str) -> None:
        self._drop(session)
        self._free_static()

    def _free_static(self) -> None:
        if self.block.decoding is not None:
            self.block.decoding.free()

    def _new_cache(self, job: OpenCache) -> KVCache:
        """Allocate a cache, with the rows that it begins with.

        Raises:
            PrefixLostError: when these rows are not held any more, or cannot be shared.
        """
        copied = job.copied
        source = None if copied is None else self._caches.get(copied.session)
        if copied is not None and source is None:
            raise PrefixLostError(f"no rows of session {copied.session} are held here")
        cache = self.block.new_cache(job.capacity)
        if copied is not None and source is not None:
            cache.copy(source, copied.slots, copied.shared)
        return cache

    def _prepare(self, job: Forward) -> _PreparedForward:
        """Return the rows of a forward, whose cache has been gathered for them."""
        cache = self._caches.get(job.session)
        if cache is None:
            raise ProtocolError(f"session {job.session} has no cache here")
        cache.gather(job.gathered_until, job.slots)
        payload = job.payload
        if self.model is not None and self.block.is_first:
            payload = self.model.known(payload)
        width = self.block.input_width
        carries = payload.ndim > 1 and payload.shape[1] > width  # what earlier stages have tapped
        # The block checks token ids before it copies them, and copies all inputs of static forwards together.
        by_block = self.block.is_first or (self.block.decoding is not None and not carries)
        inputs = to_tensor(payload, "cpu" if by_block else self.block.device)
        own = inputs[:, :width].contiguous() if carries else inputs
        rows = SessionRows(
            own, job.positions, cache, job.cached, job.context, job.tail_parents, job.committed
        )
        return _PreparedForward(job, rows, inputs[:, width:] if carries else None)

    def _compute(self, prepared: _PreparedForward) -> ForwardOutcome:
        job = prepared.job
        outputs = self.block.forward_together([prepared.rows], lambda: job.dead, self._taps)
        return None if outputs is None else self._conclude(prepared, outputs[0])

    def _conclude(self, prepared: _PreparedForward, output: torch.Tensor) -> ForwardOutcome:
        """Return the result of a forward with this output of the block."""
        job, width = prepared.job, self.block.output_width
        if self.model is not None and self.model.head is not None:
            return self.model.predict(output, job.positions)
        if prepared.carried is not None:
            output = torch.cat((output[:, :width], prepared.carried, output[:, width:]), dim=-1)
        return to_payload(output) if job.draw is None else self._draw(job, job.draw, output)

    @torch.inference_mode()
    def _draw(self, job: Forward, draw: Draw, output: torch.Tensor) -> DrawnRows:
        """Return the tokens drawn along the rows of a forward, and its output as far as it is wanted."""
        rows, tokens = draw.visitable, draw.visitable
        if len(rows):
            rows, tokens = self._follow(job, draw, output)
        if not job.committed:
            (kept,) = to_device(output.device, rows)
            output = output[kept]
        if not draw.features:
            return DrawnRows(rows, tokens, np.zeros((len(output), 0), dtype=payload_dtype(output.dtype)))
        return DrawnRows(rows, tokens, to_payload(output))

    def _follow(self, job: Forward, draw: Draw, output: torch.Tensor) -> tuple[IntArray, IntArray]:
        """Return the rows on the target's path, and the token drawn after each.

        Raises:
            NonFiniteError: when rows or logits are no numbers.
            ProtocolError: when there is no LM head here.
        """
        head = self.head
        if head is None:
            raise ProtocolError(f"session {job.session} wants tokens drawn where there is no LM head")
        rows = draw.visitable
        sampler, positions = TokenSampler(draw.sampling, head.vocab_size), job.positions[rows] + 1
        visited, streams = to_device(head.device, rows, sampler.streams(positions))
        hidden = output[visited, : head.hidden_size]
        try:
            return draw.follow(tree_draws(head, sampler, hidden, streams, draw.visitable_parents, positions))
        except NonFiniteError as error:
            damaged = rows_not_finite(to_payload(hidden))
            if not damaged:
                raise
            computed = f"{damaged} of {len(rows)} rows that {self._layers} computed"
            raise NonFiniteError.of(computed, payload_dtype(hidden.dtype)) from error
