"""What a plan is made of: pipelines, single runs with their keys, tasks, and the entries of the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import VerificationChoice
from flowedge.core.request import Noise
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.lookup.answer_store import AnswerStore, EndedAnswer
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts
from flowedge.planning.virtual_pipeline import VirtualPipeline
from flowedge_testbed.emulation.changing_costs import ChangingCosts, Events
from flowedge_testbed.emulation.published_places import AUTO
from flowedge_testbed.emulation.stage_groups import groups_of
from flowedge_testbed.emulation.system import OWN_SYSTEM, System
from flowedge_testbed.real_pipeline import RealPipeline

Point: TypeAlias = tuple[tuple[str, float], ...]  # value of each sweep axis
Options: TypeAlias = tuple[tuple[str, float], ...]  # of a strategy, by name
Setup: TypeAlias = PipelineProfile | RealPipeline


Prompt: TypeAlias = tuple[int, ...]


def _emulation(setup: Setup) -> PipelineProfile:
    if not isinstance(setup, PipelineProfile):
        raise BadRequestError(f"{setup.name} is on real hosts, which cannot be emulated; use --clock real")
    return setup


@dataclass(frozen=True)
class Case:
    """A pipeline at one point of the sweep.

    Attributes:
        options: the strategy options that the point sets.
        drawing: the pipeline by where it draws tokens, for each place that a method has, and for auto.
        places: where each method of the scenario draws.
        events: that change the pipeline in the middle of each request.
    """

    profile: str
    point: Point
    options: Options
    drawing: Mapping[VerificationChoice, Setup]
    places: Mapping[str, VerificationChoice]
    events: Events = ()

    @property
    def setup(self) -> Setup:
        """The pipeline that draws where the product does."""
        return self.drawing[AUTO]

    def setup_of(self, method: str) -> Setup:
        """Return the pipeline that a method runs on."""
        return self.drawing[self.places[method]]

    def emulation_of(self, method: str) -> PipelineProfile:
        """Return the emulated pipeline that a method runs on.

        Raises:
            BadRequestError: when the pipeline is on real hosts.
        """
        return _emulation(self.setup_of(method))

    @property
    def emulation(self) -> PipelineProfile:
        """The emulated pipeline.

        Raises:
            BadRequestError: when the pipeline is on real hosts.
        """
        return _emulation(self.setup)


@dataclass(frozen=True)
class Run:
    """One request by one method. Runs that could give different results have different keys."""

    key: str
    strategy: str
    options: Options
    setup: Setup
    link_seed: int
    prefill_rows: int
    noise: Noise = "plain"
    system: System = OWN_SYSTEM
    events: Events = ()

    @property
    def emulation(self) -> PipelineProfile:
        """The emulated pipeline.

        Raises:
            BadRequestError: when the pipeline is on real hosts.
        """
        return _emulation(self.setup)

    def costs(self) -> ProfileCosts | ChangingCosts:
        """Return the costs of the run, changed by its events."""
        costs = self.system.costs(self.emulation, self.link_seed, self.strategy)
        return ChangingCosts(costs, self.events) if self.events else costs

    @property
    def driver(self) -> Callable[..., VirtualPipeline]:
        """What makes the virtual pipeline of the run's system."""
        return self.system.driver(groups_of(self.strategy, dict(self.options), self.setup.num_stages))

    @property
    def real(self) -> RealPipeline:
        """The pipeline of real hosts.

        Raises:
            BadRequestError: when the pipeline is emulated.
        """
        if not isinstance(self.setup, RealPipeline):
            raise BadRequestError(f"{self.setup.title} is emulated; use --clock replay, virtual or paced")
        return self.setup


@dataclass(frozen=True)
class Task:
    """Runs of one prompt, temperature and seed, which share its true path.

    Attributes:
        earlier: answers in which drafts may be looked up. Each run begins with these, and leaves none.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    runs: tuple[Run, ...]
    earlier: tuple[EndedAnswer, ...] = ()

    def answers(self) -> AnswerStore | None:
        """Return a store of the earlier answers; None without any."""
        return AnswerStore.holding(self.earlier) if self.earlier else None


@dataclass(frozen=True)
class Cell:
    """The runs of one entry of the results: a method on a case, dataset, temperature and kind of drafting.

    Attributes:
        keys: of the runs, seed by seed and within a seed prompt by prompt; seeds: the number of seeds.
        prompts: the place in the dataset of each run's prompt.
        capacity: rows of the KV cache that the longest of the requests takes.
        drafts: whether the method drafts.
        setting: of a tuned method: the tried values, or () for its own options. None of other methods.
    """

    case: Case
    method: str
    strategy: str
    options: Options
    dataset: str
    temperature: float
    noise: Noise
    keys: tuple[str, ...]
    seeds: int
    prompts: tuple[int, ...]
    capacity: int
    drafts: bool
    setting: Options | None = None


@dataclass(frozen=True)
class RunPlan:
    """The tasks to carry out, and the entries of the results that their runs belong to."""

    tasks: tuple[Task, ...]
    cells: tuple[Cell, ...]

    @property
    def num_runs(self) -> int:
        return sum(len(task.runs) for task in self.tasks)


def by_setup(tasks: Sequence[Task]) -> list[Task]:
    """Return the same runs as tasks of a single pipeline each, with its events, grouped by pipeline."""
    pipelines: list[tuple[Setup, Events]] = []
    for task in tasks:
        pipelines.extend(each for run in task.runs if (each := (run.setup, run.events)) not in pipelines)
    parts = [
        replace(task, runs=tuple(run for run in task.runs if (run.setup, run.events) == pipeline))
        for pipeline in pipelines
        for task in tasks
    ]
    return [part for part in parts if part.runs]
