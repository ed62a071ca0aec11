"""Executors: the jobs of the state machines, run on real models."""

from __future__ import annotations

import numpy as np
import torch

from flowedge.core.arrays import IntArray
from flowedge.core.errors import BadRequestError, FlowEdgeError, NonFiniteError, ProtocolError
from flowedge.core.sampling import Walk, walk
from flowedge.drafting.drafter import Drafter, Frontier
from flowedge.engine.finite import rows_not_finite
from flowedge.engine.jobs import (
    Batch,
    DraftBatch,
    DraftJob,
    DraftPart,
    DraftPartResult,
    DraftResult,
    DropCache,
    ExtendDraft,
    Forward,
    ForwardResult,
    GrowDraft,
    OpenCache,
    OpenDraft,
    StageJob,
    StageResult,
    Verify,
    run_in_turn,
)
from flowedge.engine.out_of_memory import within_memory
from flowedge.engine.stage_session import StageSpec
from flowedge.engine.verification.draw import Draw, DrawnRows
from flowedge.models.copies import to_device
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.head import LMHead
from flowedge.models.layers.language_model import LanguageModel
from flowedge.models.layers.taps import Taps, tapped_place, taps_within
from flowedge.models.layers.tensors import payload_dtype, to_payload, to_tensor
from flowedge.models.sampling.token_sampler import TokenSampler
from flowedge.models.sampling.tree_draws import tree_draws


class BlockExecutor:
    """A StageExecutor over a block of layers, with the caches of all its sessions.

    Attributes:
        row_width: values of a row of hidden states that it takes.
        added_width: values by which the rows that it returns are wider.
        model: the whole model of which `block` has all layers. Each row is then answered with the token that
            the model predicts after it; None where hidden states are returned.
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
        self.row_width, handed_on = tapped_place(block.hidden_size, taps, block.start, block.stop)
        self.added_width = handed_on - self.row_width
        self._taps = taps_within(taps, block.start, block.stop)
        self._caches: dict[str, SessionCache] = {}

    @property
    def weight_bytes(self) -> int:
        if self.model is not None:
            return self.model.weight_bytes
        return self.block.weight_bytes + (0 if self.head is None else self.head.weight_bytes)

    def stage_spec(self, **limits: int) -> StageSpec:
        """Return what a stage with this executor accepts and hands on; `limits` are fields of StageSpec."""
        return StageSpec(
            is_first=self.block.is_first,
            width=self.row_width,
            tapped_before=self.row_width - self.block.hidden_size,
            vocab_size=self.block.vocab_size if self.model is None else self.model.vocab_size,
            dtype=payload_dtype(self.block.dtype),
            added_width=self.added_width,
            draws=self.head is not None,
            returns_tokens=self.model is not None,
            layers=self._layers,
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

    def close(self) -> None:
        """Free all weights and caches, even if this is still referenced. It runs no job after that."""
        self._caches.clear()
        self.model = self.head = None
        del self.block

    def run(self, job: StageJob) -> StageResult:
        """Run one job. Returns None for a forward that was aborted.

        Raises:
            CapacityError: when memory runs out; the session's cache is free then.
            FlowEdgeError: when the job contradicts the session. Of a batch nothing is raised: such an error
                is the result of the one forward.
        """
        if isinstance(job, Batch):
            return self._run_batch(job)
        return self._run_alone(job)

    def _run_batch(self, batch: Batch) -> StageResult:
        results: list[ForwardResult | FlowEdgeError] = []
        for forward in batch.forwards:
            try:
                results.append(self._run_alone(forward))
            except FlowEdgeError as error:
                results.append(error)
        return results

    def _run_alone(self, job: OpenCache | DropCache | Forward) -> ForwardResult:
        claim = f"the next rows of session {job.session} do not fit"
        return within_memory(
            claim,
            self.block.device,
            lambda: self._run(job),
            lambda: self._free(job.session),
        )

    def _drop(self, session: str) -> None:
        self._caches.pop(session, None)

    def _free(self, session: str) -> None:
        self._drop(session)
        if self.block.decoding is not None:
            self.block.decoding.free()

    def _run(self, job: OpenCache | DropCache | Forward) -> ForwardResult:
        match job:
            case OpenCache():
                self._caches[job.session] = self.block.new_cache(job.capacity)
            case DropCache():
                self._drop(job.session)
            case Forward():
                return self._forward(job)
        return None

    def _forward(self, job: Forward) -> ForwardResult:
        cache = self._caches.get(job.session)
        if cache is None:
            raise ProtocolError(f"session {job.session} has no cache here")
        cache.gather(job.gathered_until, job.slots)
        payload = job.payload if self.model is None else self.model.known(job.payload)
        width = self.block.hidden_size
        carries = payload.ndim > 1 and payload.shape[1] > width  # what earlier stages have tapped
        # The block checks token ids before it copies them, and copies all inputs of static forwards together.
        by_block = self.block.is_first or (self.block.decoding is not None and not carries)
        inputs = to_tensor(payload, "cpu" if by_block else self.block.device)
        output = self.block.forward(
            inputs[:, :width].contiguous() if carries else inputs,
            job.positions,
            cache,
            job.cached,
            job.context,
            job.tail_parents,
            lambda: job.dead,
            self._taps,
        )
        if output is None:
            return None
        if self.model is not None:
            return self.model.predict(output, job.positions)
        if carries:
            output = torch.cat((output[:, :width], inputs[:, width:], output[:, width:]), dim=-1)
        return to_payload(output) if job.draw is None else self._draw(job, job.draw, output)

    @torch.inference_mode()
    def _draw(self, job: Forward, draw: Draw, output: torch.Tensor) -> DrawnRows:
        """Return the tokens drawn along the rows of a forward, and its output as far as it is wanted."""
        rows, tokens = draw.visitable, draw.visitable
        if len(rows):
            rows, tokens = self._follow(job, draw, output)
        if not job.committed:
            (places,) = to_device(output.device, rows)
            output = output[places]
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
        places, streams = to_device(head.device, rows, sampler.streams(positions))
        hidden = output[places, : head.hidden_size]
        try:
            return draw.follow(tree_draws(head, sampler, hidden, streams, draw.visitable_parents, positions))
        except NonFiniteError as error:
            damaged = rows_not_finite(to_payload(hidden))
            if not damaged:
                raise
            computed = f"{damaged} of {len(rows)} rows that {self._layers} computed"
            raise NonFiniteError.of(computed, payload_dtype(hidden.dtype)) from error


class HeadExecutor:
    """A DraftExecutor: the LM head, the sampler, and the drafter where there is one."""

    def __init__(self, head: LMHead, drafter: Drafter | None) -> None:
        self.head = head
        self.drafter = drafter

    def close(self) -> None:
        """Free all weights, even if this object is still referenced. It runs no job after that."""
        self.drafter = None
        del self.head

    def run(self, job: DraftJob) -> DraftResult:
        """Run one job.

        Raises:
            CapacityError: when memory runs out; the drafter's state of the session is free then.
            FlowEdgeError: when the job contradicts the session. Of a batch nothing is raised.
        """
        return run_in_turn(self._run_alone, job) if isinstance(job, DraftBatch) else self._run_alone(job)

    def _run_alone(self, job: DraftPart) -> DraftPartResult:
        claim = f"drafting and verifying for session {job.session} do not fit"
        return within_memory(
            claim,
            self.head.device,
            lambda: self._run(job),
            lambda: self._free(job.session),
        )

    def _drop(self, session: str) -> None:
        if self.drafter is not None:
            self.drafter.close(session)

    def _free(self, session: str) -> None:
        self._drop(session)
        if self.drafter is not None:
            self.drafter.free_idle()

    def _run(self, job: DraftPart) -> DraftPartResult:
        match job:
            case Verify():
                return self._verify(job)
            case OpenDraft():
                if self.drafter is not None:
                    self.drafter.open(job.session, job.capacity, job.first_token, job.noise)
            case DropCache():
                self._drop(job.session)
            case ExtendDraft():
                self._drafter().extend(job.session, job.features, job.next_tokens)
            case GrowDraft():
                drafter = self._drafter()
                if job.next_tokens is not None:
                    drafter.extend(job.session, job.features, job.next_tokens)
                frontier = Frontier(job.nodes.tolist(), job.parents.tolist(), job.tokens.tolist())
                return drafter.grow(job.session, job.growth, frontier, job.width)
        return None

    @torch.inference_mode()
    def _verify(self, job: Verify) -> Walk:
        sampler, positions = TokenSampler(job.sampling, self.head.vocab_size), job.positions + 1
        hidden = job.hidden[:, : self.head.hidden_size]
        rows, streams = to_device(self.head.device, hidden, sampler.streams(positions))
        parents = job.parents.tolist()
        draw = tree_draws(self.head, sampler, rows, streams, parents, positions)
        return walk(job.tokens.tolist(), parents, draw)

    def _drafter(self) -> Drafter:
        if self.drafter is None:
            raise BadRequestError("this draft node has no drafter; only autoregressive decoding works")
        return self.drafter
