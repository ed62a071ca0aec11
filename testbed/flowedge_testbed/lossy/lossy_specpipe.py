"""SpecPipe with lossy verification, on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import DRAFT_NODE
from flowedge.core.sampling import Walk, walk
from flowedge.core.tree import ROOT
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.jobs import DraftBatch, DraftExecutor, DraftJob, DraftResult, Verify
from flowedge.models.host.payloads import to_tensor
from flowedge.models.lm_head import LMHead
from flowedge.planning.virtual_pipeline import VirtualPipeline
from flowedge.strategies.published.stepwise import SpecPipe, SpecPipeSettings
from flowedge_testbed.emulation.system import System
from flowedge_testbed.lossy.rules import Candidates, Rule
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.record import RunRecord
from flowedge_testbed.run_backends import NoText, VirtualBackend
from flowedge_testbed.runs import Run, Task


class CandidateSpecPipe(SpecPipe):
    """SpecPipe that tells what its tree has below the root."""

    def candidates(self) -> Candidates:
        """Return the nodes below the root, or what would be the next level if the root is the deepest."""
        drafts = self._drafts
        nodes = np.flatnonzero(drafts.tree.parents == ROOT)
        if len(nodes):
            return Candidates(drafts.tree.tokens[nodes], drafts.tree.scores[nodes] - drafts.tree.scores[ROOT])
        tokens, log_probs = drafts.proposals(ROOT)
        best = np.argsort(-log_probs, kind="stable")[: self.settings.width]
        return Candidates(tokens[best], log_probs[best])


@dataclass
class LossyDraws:
    """A DraftExecutor whose tokens after a root are taken by a rule among the candidates. Greedy draws only.

    Attributes:
        exact: runs all other jobs.
        taken: tokens taken after roots with candidates; own: those of them that are the target's likeliest.
    """

    exact: DraftExecutor
    head: LMHead
    strategy: CandidateSpecPipe
    rule: Rule
    taken: int = field(default=0, init=False)
    own: int = field(default=0, init=False)

    def run(self, job: DraftJob) -> DraftResult:
        result = self.exact.run(job)
        if not isinstance(job, DraftBatch) or not job.verifies:
            return result
        return [self._walk(each) for each in job.jobs if isinstance(each, Verify)]

    def _walk(self, job: Verify) -> Walk:
        logits = self.head.logits(to_tensor(job.hidden)[:, : self.head.hidden_size])
        likeliest = logits.argmax(dim=1).tolist()
        candidates, token = self.strategy.candidates(), likeliest[0]
        if len(candidates.tokens):
            probabilities = torch.softmax(logits[0].double(), dim=0).numpy()
            token = self.rule(probabilities, candidates)
            self.taken += 1
            self.own += token == likeliest[0]
        drawn = [token, *likeliest[1:]]
        return walk(job.tokens.tolist(), job.parents.tolist(), drawn.__getitem__)


@dataclass(frozen=True, eq=False, kw_only=True)
class LossySystem(System):
    """The system whose pipeline `make` makes."""

    make: Callable[..., VirtualPipeline]

    def driver(self, groups: Sequence[tuple[int, int]]) -> Callable[..., VirtualPipeline]:  # noqa: ARG002
        return self.make


def lossy_run(models: ModelSet, task: Task, run: Run, rule: Rule) -> tuple[RunRecord, LossyDraws]:
    """Compute a request of SpecPipe whose tokens are taken by a rule.

    Args:
        run: of the strategy specpipe, greedy, on a pipeline that verifies on the draft node.

    Raises:
        BadRequestError: when the run is another.
    """
    if run.strategy != SpecPipe.name or task.sampling.temperature or run.emulation.verification != DRAFT_NODE:
        raise BadRequestError(
            "lossy verification is for specpipe alone, at temperature 0 and with verification: draft-node; "
            f"this is {run.strategy} at temperature {task.sampling.temperature:g} with verification: "
            f"{run.emulation.verification}"
        )
    strategy = CandidateSpecPipe(SpecPipeSettings.from_options(dict(run.options)))
    made: list[LossyDraws] = []

    def make(node: DraftNode, exact: DraftExecutor, *others: Any) -> VirtualPipeline:
        made.append(LossyDraws(exact, models.head, strategy, rule))
        own = DraftNode("d0", node.spec, lambda _request: strategy, NoText, node.admission.limits)
        return VirtualPipeline(own, made[0], *others)

    lossy = replace(run, system=LossySystem(make=make))
    ((_, record, _),) = VirtualBackend(models, Path()).measure(replace(task, runs=(lossy,)))
    return record, made[0]
