"""The emulated system that runs a method: its pipeline, its costs and its faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from flowedge.core.messages import Message, Prune
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts
from flowedge.planning.virtual_pipeline import ExpressDelay, VirtualPipeline
from flowedge_testbed.emulation.lock_step import LOCK_STEPS, OWN_LOCK_STEPS, LockStepPipeline
from flowedge_testbed.emulation.system_choice import LockStepName, SystemChoice
from flowedge_testbed.emulation.unpruned_cache import UnprunedCacheCosts


@dataclass(frozen=True)
class System:
    """The system that runs a method; the default is FlowEdge's own."""

    lock_step: LockStepName | None = None
    express: bool = True
    kv_pruning: bool = True

    @classmethod
    def of(cls, choice: SystemChoice, strategy: str) -> System:
        """Return the system of a strategy."""
        barrier = OWN_LOCK_STEPS.get(strategy) if choice.barrier is True else choice.barrier or None
        return cls(barrier, choice.express is not False, choice.kv_pruning is not False)

    def driver(self, groups: Sequence[tuple[int, int]]) -> Callable[..., VirtualPipeline]:
        """Return what makes the pipeline.

        groups: the first stage of each group of stages, and the one behind its last.
        """
        if self.lock_step is None:
            return VirtualPipeline
        inner = frozenset(stage for first, stop in groups for stage in range(first, stop - 1))
        return partial(LockStepPipeline, lock_step=LOCK_STEPS[self.lock_step], inner=inner)

    def costs(self, pipeline: PipelineProfile, seed: int, strategy: str) -> ProfileCosts:
        """Return the costs of a pipeline; the arguments are those of ProfileCosts."""
        made = ProfileCosts if self.kv_pruning else UnprunedCacheCosts
        return made(pipeline, seed, strategy)

    @property
    def express_fault(self) -> ExpressDelay | None:
        return None if self.express else _lose_prunes


OWN_SYSTEM = System()


def _lose_prunes(_stage: int, message: Message) -> float | None:
    return None if isinstance(message, Prune) else 0.0
