"""The executor of a draft node: the LM head, the sampler and the drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from flowedge.core.errors import BadRequestError, CapacityError, FlowEdgeError, PrefixLostError, ProtocolError
from flowedge.drafting.drafter import Drafter, DraftLayer, Frontier, GrowRequest
from flowedge.drafting.lookup.answer_store import AnswerStore, EndedAnswer
from flowedge.engine.executors.answer_rules import AnswerRules
from flowedge.engine.executors.one_by_one import run_one_by_one
from flowedge.engine.executors.out_of_memory import within_memory
from flowedge.engine.executors.ruled_drafts import DraftPlan, RuledDrafts
from flowedge.engine.jobs import (
    CacheJob,
    DraftBatch,
    DraftJob,
    DraftOutcome,
    DraftResult,
    DropCache,
    ExtendDraft,
    GrowDraft,
    KeepDraft,
    ModelJob,
    OpenDraft,
    Verify,
)
from flowedge.models.lm_head import LMHead
from flowedge.models.sampling.ruled_draws import RuledDraws
from flowedge.models.sampling.token_sampler import TokenSampler
from flowedge.models.sampling.tree_walks import ReturnedTree, walk_together
from flowedge.text.grammar_compiler import GrammarCompiler

T = TypeVar("T")


class HeadExecutor:
    """A DraftExecutor: the LM head, the sampler, and the drafter where there is one."""

    def __init__(
        self,
        head: LMHead,
        drafter: Drafter | None,
        grammars: GrammarCompiler | None = None,
        answers: AnswerStore | None = None,
    ) -> None:
        """Compute with a head and a drafter.

        Args:
            grammars: of the model's tokenizer; without it no request may have a grammar.
            answers: where ended answers are kept for the drafter; without it they are not.
        """
        self.head = head
        self.drafter = drafter
        self._answers = answers
        self._sessions: set[str] = set()  # that the drafter may hold
        self._rules = AnswerRules(grammars)
        self._ruled = RuledDrafts(grammars, head.vocab_size)

    def drop_sessions(self) -> None:
        """Free all sessions."""
        for session in self._sessions:
            self._free(session)
        self._sessions.clear()

    def close(self) -> None:
        """Free all weights, even if this object is still referenced. It runs no job after that."""
        self.drafter = None
        del self.head

    def run(self, job: DraftJob) -> DraftResult:
        """Run one job.

        When the memory does not suffice for the jobs of a batch together, they are run one after the other. A
        session whose job fails, because memory runs out or because the job contradicts the session, has the
        error as its outcome; the drafter's state of the session is free when memory ran out.

        Raises:
            CapacityError: when memory runs out for a cache.
            PrefixLostError: when the drafter does not hold the true rows that a session begins with.
        """
        if isinstance(job, DraftBatch):
            return self._run_batch(job)
        self._within_memory(job.session, lambda: self._change_caches(job))
        return None

    def _within_memory(self, session: str, run: Callable[[], T]) -> T:
        claim = f"drafting and verifying for session {session} do not fit"
        return within_memory(claim, self.head.device, run, lambda: self._free(session))

    def _run_batch(self, batch: DraftBatch) -> list[DraftOutcome]:
        if len(batch.jobs) > 1 and (batch.verifies or self.drafter is not None):
            claim = f"drafting and verifying for {len(batch.jobs)} sessions together do not fit"
            try:
                return within_memory(
                    claim, self.head.device, lambda: self._compute(batch.jobs), self._free_idle
                )
            except CapacityError:  # as the log says; no session has changed
                pass
        return run_one_by_one(self._run_alone, batch)

    def _run_alone(self, job: ModelJob) -> DraftOutcome:
        return self._within_memory(job.session, lambda: self._compute([job])[0])

    def _free(self, session: str) -> None:
        self._drop_rules(session)
        if self.drafter is not None:
            self.drafter.close(session)
        self._free_idle()

    def _free_idle(self) -> None:
        if self.drafter is not None:
            self.drafter.free_idle()

    def _change_caches(self, job: CacheJob) -> None:
        match job:
            case OpenDraft():
                self._open(job)
            case KeepDraft():
                self._extend_by_waiting(job.session)
                self._drop_rules(job.session)
                if self.drafter is not None:
                    self.drafter.keep(job.session)
                self._ended(job.answer)
            case DropCache():
                self._sessions.discard(job.session)
                self._drop_rules(job.session)
                if self.drafter is not None:
                    self.drafter.close(job.session)
                self._ended(job.answer)

    def _ended(self, answer: EndedAnswer | None) -> None:
        """Keep an answer that has ended, if answers are kept."""
        if self._answers is not None and answer is not None:
            self._answers.add(answer)

    def _open(self, job: OpenDraft) -> None:
        """Begin a session of the drafter, if there is one.

        Raises:
            PrefixLostError: when the drafter does not hold the true rows that the session begins with.
        """
        self._sessions.add(job.session)
        self._drop_rules(job.session)
        if self.drafter is None:
            return
        if job.prefix is not None:
            self._extend_by_waiting(job.prefix.session)
        earlier = None if self._answers is None else self._answers.of(job.tenant)
        try:
            self.drafter.open(job.session, job.capacity, job.first_token, job.noise, job.prefix, earlier)
        except ValueError as error:
            if job.prefix is None:
                raise
            raise PrefixLostError(f"session {job.session} cannot begin: {error}") from error

    def _compute(self, jobs: Sequence[ModelJob]) -> list[DraftOutcome]:
        verifying = [job for job in jobs if isinstance(job, Verify)]
        return self._verify(verifying) or self._draft([job for job in jobs if not isinstance(job, Verify)])

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
        known = None if job.known is None else job.known.tolist()
        return RuledDraws(sampler, job.path.rules, self._rules.at(job.session, job.path), known)

    def _drop_rules(self, session: str) -> None:
        self._rules.drop(session)
        self._ruled.drop(session)

    def _extend_by_waiting(self, session: str) -> None:
        """Give the drafter the true rows that it has not been given, because no node needed it."""
        rows = self._ruled.waiting_rows(session)
        if rows is not None:
            self._drafter().grow([GrowRequest.extension(session, *rows)])
            self._ruled.given(session)

    def _draft(self, jobs: list[ExtendDraft | GrowDraft]) -> list[DraftOutcome]:
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
            layers = drafter.grow(requests)
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


def _tree(job: Verify, ruled: RuledDraws | None) -> ReturnedTree:
    return ReturnedTree(
        job.sampling, job.hidden, job.tokens.tolist(), job.parents.tolist(), job.positions + 1, ruled
    )


def _frontier(job: GrowDraft) -> Frontier:
    return Frontier(job.nodes.tolist(), job.parents.tolist(), job.tokens.tolist())


def _request(job: ExtendDraft | GrowDraft) -> GrowRequest:
    if isinstance(job, GrowDraft):
        rows = job.features, job.next_tokens
        return GrowRequest(
            job.session, job.growth, _frontier(job), job.width, *rows, lookup_alone=job.lookup_alone
        )
    return GrowRequest.extension(job.session, job.features, np.asarray(job.next_tokens))
