"""What a scenario chooses about the system that runs a method, besides the method's own options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from flowedge.core.messages import Message, Prune
from flowedge.planning.profile.model import YamlDocument
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts
from flowedge.planning.virtual_pipeline import ExpressDelay, VirtualPipeline
from flowedge_testbed.emulation.lock_step import LOCK_STEPS, OWN_LOCK_STEPS, LockStepName, LockStepPipeline
from flowedge_testbed.emulation.unpruned_cache import UnprunedCacheCosts

BarrierChoice = bool | Literal["flowspec", "pipedec"]


class SystemChoice(YamlDocument):
    """How an emulated system runs a method; what is not given here is as elsewhere in the scenario.

    Attributes:
        barrier: the lock-step that the method runs in: that of a paper's system, or with `true` that of the
            system which the method was published with, if it has any (see `lock_step`).
        express: whether prunes go straight to every stage, and not in-band alone.
        kv_pruning: whether stages drop pruned rows from their KV cache; if not, attention goes on reading
            them.
    """

    barrier: BarrierChoice | None = None
    express: bool | None = None
    kv_pruning: bool | None = None

    def over(self, other: SystemChoice) -> SystemChoice:
        """Return these choices, and those of another where these are not given."""
        names = SystemChoice.model_fields
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return SystemChoice(**{name: getattr(other, name) for name in names} | given)


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
