"""The executor of a draft node: the LM head, the sampler and the drafter."""

from __future__ import annotations

from typing import overload

import numpy as np

from flowedge.core.errors import BadRequestError, CapacityError, FlowEdgeError, PrefixLostError, ProtocolError
from flowedge.drafting.drafter import Drafter, DraftLayer, Frontier, GrowRequest
from flowedge.engine.executors.answer_rules import AnswerRules
from flowedge.engine.executors.in_turn import run_in_turn
from flowedge.engine.executors.ruled_drafts import DraftPlan, RuledDrafts
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
from flowedge.models.sampling.ruled_draws import RuledDraws
from flowedge.models.sampling.token_sampler import TokenSampler
from flowedge.models.sampling.tree_walks import ReturnedTree, walk_together
from flowedge.text.grammar_compiler import GrammarCompiler


class HeadExecutor:
    """A DraftExecutor: the LM head, the sampler, and the drafter where there is one."""

    def __init__(
        self, head: LMHead, drafter: Drafter | None, grammars: GrammarCompiler | None = None
    ) -> None:
        """grammars: of the model's tokenizer; without it no request may have a grammar."""
        self.head = head
        self.drafter = drafter
        self._rules = AnswerRules(grammars)
        self._ruled = RuledDrafts(grammars, head.vocab_size)

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
        self._drop_rules(session)
        if self.drafter is not None:
            self.drafter.close(session)
        self._free_idle()

    def _free_idle(self) -> None:
        if self.drafter is not None:
            self.drafter.free_idle()

    def _compute(self, job: DraftJob) -> DraftResult:
        match job:
            case Verify():
                return _result(self._verify([job]))
            case OpenDraft():
                self._open(job)
            case KeepDraft():
                self._extend_by_waiting(job.session)
                self._drop_rules(job.session)
                if self.drafter is not None:
                    self.drafter.keep(job.session)
            case DropCache():
                self._drop_rules(job.session)
                if self.drafter is not None:
                    self.drafter.close(job.session)
            case ExtendDraft() | GrowDraft() if self._ruled.concerns(job):
                return _result(self._draft_together([job]))
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
        self._drop_rules(job.session)
        if self.drafter is None:
            return
        if job.prefix is not None:
            self._extend_by_waiting(job.prefix.session)
        try:
            self.drafter.open(job.session, job.capacity, job.first_token, job.noise, job.prefix)
        except ValueError as error:
            if job.prefix is None:
                raise
            raise PrefixLostError(f"session {job.session} cannot begin: {error}") from error

    def _compute_together(self, batch: DraftBatch) -> list[DraftOutcome]:
        if batch.verifies:
            return self._verify([job for job in batch.jobs if isinstance(job, Verify)])
        return self._draft_together([job for job in batch.jobs if not isinstance(job, Verify)])

    def _verify(self, jobs: list[Verify]) -> list[DraftOutcome]:
        """Return each job's walk, or the error that ends its session."""
        outcomes: dict[str, DraftOutcome] = {}
        trees: dict[str, ReturnedTree] = {}
        for job in jobs:
            try:
                trees[job.session] = _tree(job, self._ruled_draws(job))
            except BadRequestError as error:
                outcomes[job.session] = error
        if trees:
            outcomes.update(zip(trees, walk_together(self.head, list(trees.values())), strict=True))
        return [outcomes[job.session] for job in jobs]

    def _ruled_draws(self, job: Verify) -> RuledDraws | None:
        if job.path is None:
            return None
        sampler = TokenSampler(job.sampling, self.head.vocab_size)
        return RuledDraws(sampler, job.path.rules, self._rules.at(job.session, job.path))

    def _drop_rules(self, session: str) -> None:
        self._rules.drop(session)
        self._ruled.drop(session)

    def _extend_by_waiting(self, session: str) -> None:
        """Give the drafter the true rows that it has not been given, because no node needed it."""
        rows = self._ruled.waiting_rows(session)
        if rows is not None:
            self._drafter().extend(session, *rows)
            self._ruled.given(session)

    def _draft_together(self, jobs: list[ExtendDraft | GrowDraft]) -> list[DraftOutcome]:
        """Return each job's layer, or the error for which it was left out of the computation."""
        drafter = self._drafter()
        outcomes: dict[str, DraftOutcome] = {}
        requests: list[GrowRequest] = []
        plans: dict[str, DraftPlan] = {}
        for job in jobs:
            plan = self._ruled.plan(job)
            request = _request(job) if plan is None else plan.request
            if plan is not None:
                plans[job.session] = plan
            if request is None:
                continue
            try:
                drafter.check_request(request)
            except FlowEdgeError as error:
                outcomes[job.session] = error
            except ValueError as error:
                outcomes[job.session] = ProtocolError(f"drafting for session {job.session}: {error}")
            else:
                requests.append(request)
        drafted: dict[str, DraftLayer] = {}
        if requests:
            layers = drafter.grow_together(requests)
            drafted = {each.session: layer for each, layer in zip(requests, layers, strict=True)}
        for job in jobs:
            if job.session in outcomes:
                continue
            layer, own = drafted.get(job.session), plans.get(job.session)
            if own is not None:
                self._ruled.done(own)
                outcomes[job.session] = own.layer(layer)
            else:
                outcomes[job.session] = layer if isinstance(job, GrowDraft) else None
        return [outcomes[job.session] for job in jobs]

    def _drafter(self) -> Drafter:
        if self.drafter is None:
            raise BadRequestError("this draft node has no drafter; only autoregressive decoding works")
        return self.drafter


def _result(outcomes: list[DraftOutcome]) -> DraftResult:
    """The outcome of a single job; raises it if it is an error."""
    (outcome,) = outcomes
    if isinstance(outcome, FlowEdgeError):
        raise outcome
    return outcome


def _tree(job: Verify, ruled: RuledDraws | None) -> ReturnedTree:
    return ReturnedTree(
        job.sampling, job.hidden, job.tokens.tolist(), job.parents.tolist(), job.positions + 1, ruled
    )


def _frontier(job: GrowDraft) -> Frontier:
    return Frontier(job.nodes.tolist(), job.parents.tolist(), job.tokens.tolist())


def _request(job: ExtendDraft | GrowDraft) -> GrowRequest:
    if isinstance(job, GrowDraft):
        rows = job.features, job.next_tokens
        return GrowRequest(job.session, job.growth, _frontier(job), job.width, *rows)
    return GrowRequest(job.session, 0, Frontier((), (), ()), 0, job.features, np.asarray(job.next_tokens))
