"""The executor of a draft node: the LM head, the sampler and the drafter."""

from __future__ import annotations

from typing import overload

import numpy as np

from flowedge.core.errors import BadRequestError, CapacityError, FlowEdgeError, PrefixLostError, ProtocolError
from flowedge.drafting.drafter import Drafter, Frontier, GrowRequest
from flowedge.engine.executors.in_turn import run_in_turn
from flowedge.engine.jobs import (
    DraftBatch,
    DraftJob,
    DraftOutcome,
    DraftResult,
    DropCache,
    ExtendDraft,
    GrowDraft,
    KeepDraft,
    OpenDraft,
    Verify,
)
from flowedge.engine.out_of_memory import within_memory
from flowedge.models.layers.head import LMHead
from flowedge.models.sampling.tree_walks import ReturnedTree, walk_together


class HeadExecutor:
    """A DraftExecutor: the LM head, the sampler, and the drafter where there is one."""

    def __init__(self, head: LMHead, drafter: Drafter | None) -> None:
        self.head = head
        self.drafter = drafter

    def close(self) -> None:
        """Free all weights, even if this object is still referenced. It runs no job after that."""
        self.drafter = None
        del self.head

    @overload
    def run(self, job: DraftJob) -> DraftResult: ...

    @overload
    def run(self, job: DraftBatch) -> list[DraftOutcome]: ...

    def run(self, job: DraftJob | DraftBatch) -> DraftResult | list[DraftOutcome]:
        """Run one job, or a batch of jobs.

        When the memory does not suffice for a batch, its jobs are run one after the other.

        Raises:
            CapacityError: when memory runs out for one job; the drafter's state of the session is free then.
            FlowEdgeError: when the job contradicts the session. A batch raises no such error: the outcome of
                a job says it.
        """
        return self._run_batch(job) if isinstance(job, DraftBatch) else self._run_alone(job)

    def _run_alone(self, job: DraftJob) -> DraftResult:
        claim = f"drafting and verifying for session {job.session} do not fit"
        return within_memory(
            claim, self.head.device, lambda: self._compute(job), lambda: self._free(job.session)
        )

    def _run_batch(self, batch: DraftBatch) -> list[DraftOutcome]:
        if len(batch.jobs) > 1 and (batch.verifies or self.drafter is not None):
            claim = f"drafting and verifying for {len(batch.jobs)} sessions together do not fit"
            try:
                return within_memory(
                    claim, self.head.device, lambda: self._compute_together(batch), self._free_idle
                )
            except CapacityError:  # as the log says; no session has changed
                pass
        return run_in_turn(self._run_alone, batch)

    def _free(self, session: str) -> None:
        if self.drafter is not None:
            self.drafter.close(session)
        self._free_idle()

    def _free_idle(self) -> None:
        if self.drafter is not None:
            self.drafter.free_idle()

    def _compute(self, job: DraftJob) -> DraftResult:
        match job:
            case Verify():
                (walked,) = walk_together(self.head, [_tree(job)])
                if isinstance(walked, FlowEdgeError):
                    raise walked
                return walked
            case OpenDraft():
                self._open(job)
            case KeepDraft():
                if self.drafter is not None:
                    self.drafter.keep(job.session)
            case DropCache():
                if self.drafter is not None:
                    self.drafter.close(job.session)
            case ExtendDraft():
                self._drafter().extend(job.session, job.features, job.next_tokens)
            case GrowDraft():
                drafter = self._drafter()
                if job.next_tokens is not None:
                    drafter.extend(job.session, job.features, job.next_tokens)
                return drafter.grow(job.session, job.growth, _frontier(job), job.width)
        return None

    def _open(self, job: OpenDraft) -> None:
        """Begin a session of the drafter, if there is one.

        Raises:
            PrefixLostError: when the drafter does not hold the true rows that the session begins with.
        """
        if self.drafter is None:
            return
        try:
            self.drafter.open(job.session, job.capacity, job.first_token, job.noise, job.prefix)
        except ValueError as error:
            if job.prefix is None:
                raise
            raise PrefixLostError(f"session {job.session} cannot begin: {error}") from error

    def _compute_together(self, batch: DraftBatch) -> list[DraftOutcome]:
        verified = [_tree(job) for job in batch.jobs if isinstance(job, Verify)]
        if verified:
            return [*walk_together(self.head, verified)]
        return self._draft_together([job for job in batch.jobs if not isinstance(job, Verify)])

    def _draft_together(self, jobs: list[ExtendDraft | GrowDraft]) -> list[DraftOutcome]:
        """Return each job's layer, or the error for which it was left out of the computation."""
        drafter = self._drafter()
        outcomes: dict[str, DraftOutcome] = {}
        requests: list[GrowRequest] = []
        for job in jobs:
            request = _request(job)
            try:
                drafter.check_request(request)
            except FlowEdgeError as error:
                outcomes[job.session] = error
            except ValueError as error:
                outcomes[job.session] = ProtocolError(f"drafting for session {job.session}: {error}")
            else:
                requests.append(request)
        for request, layer in zip(requests, drafter.grow_together(requests), strict=True):
            outcomes[request.session] = layer if len(request.frontier.nodes) else None
        return [outcomes[job.session] for job in jobs]

    def _drafter(self) -> Drafter:
        if self.drafter is None:
            raise BadRequestError("this draft node has no drafter; only autoregressive decoding works")
        return self.drafter


def _tree(job: Verify) -> ReturnedTree:
    return ReturnedTree(
        job.sampling, job.hidden, job.tokens.tolist(), job.parents.tolist(), job.positions + 1
    )


def _frontier(job: GrowDraft) -> Frontier:
    return Frontier(job.nodes.tolist(), job.parents.tolist(), job.tokens.tolist())


def _request(job: ExtendDraft | GrowDraft) -> GrowRequest:
    if isinstance(job, GrowDraft):
        rows = job.features, job.next_tokens
        return GrowRequest(job.session, job.growth, _frontier(job), job.width, *rows)
    return GrowRequest(job.session, 0, Frontier((), (), ()), 0, job.features, np.asarray(job.next_tokens))
