"""From a scenario to single runs, each with a key by which a finished one is found again."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flowedge.errors import BadRequestError
from flowedge.sampling import SamplingParams
from flowedge.strategies.registry import make_strategy
from flowedge.strategies.specpipe import SpecPipe
from testbed.drafter_sizes import emulated_drafter
from testbed.emulation import Emulation, even_split
from testbed.level_width import level_width
from testbed.memory import require_fit
from testbed.profiles import library
from testbed.profiles.hit_rate import HitRates
from testbed.profiles.link import LinkProfile
from testbed.prompts import Dataset
from testbed.scenario import OPTION, Emulated, LinkChoice, Scenario

Point = tuple[tuple[str, float], ...]  # value of each sweep axis
Options = tuple[tuple[str, float], ...]  # of a strategy, by name


@dataclass(frozen=True)
class Case:
    """An emulated pipeline at one point of the sweep, with the options that the point gives strategies."""

    profile: str
    point: Point
    emulation: Emulation
    options: Options


@dataclass(frozen=True)
class Run:
    """One request by one method. `key` tells it from every other that could give another result."""

    key: str
    strategy: str
    options: Options
    emulation: Emulation
    link_seed: int
    prefill_rows: int


@dataclass(frozen=True)
class Task:
    """Runs of one prompt, temperature and seed, which share its true path."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Cell:
    """Runs that one entry of the results is made of: a method on a case, a dataset and a temperature."""

    case: Case
    strategy: str
    options: Options
    dataset: str
    temperature: float
    keys: tuple[str, ...]  # seed by seed
    seeds: int


@dataclass(frozen=True)
class Plan:
    """Everything there is to run, and what becomes of it."""

    tasks: tuple[Task, ...]
    cells: tuple[Cell, ...]

    @property
    def num_runs(self) -> int:
        return sum(len(task.runs) for task in self.tasks)


def cases(scenario: Scenario, beside: Path) -> list[Case]:
    """Every emulated pipeline of a scenario; `beside` is the directory that .yaml names are relative to."""
    axes = [[(axis, value) for value in values] for axis, values in scenario.sweep.items()]
    return [
        _case(scenario, emulated, tuple(point), beside)
        for emulated in scenario.emulated
        for point in itertools.product(*axes)
    ]


def _case(scenario: Scenario, emulated: Emulated, point: Point, beside: Path) -> Case:
    values = dict(point)
    count = int(values["stages"]) if "stages" in values else None
    devices = scenario.devices.names(count)
    model = library.model(emulated.model, beside)
    drafter, drafting = emulated_drafter(model, emulated.drafter, scenario.pair.drafter)
    given = emulated.split if count is None else None
    emulation = Emulation(
        model=model,
        quant=emulated.quant,
        drafter=drafter,
        drafting=drafting,
        draft_node=library.device(scenario.devices.draft_node, beside),
        stages=tuple(library.device(name, beside) for name in devices),
        links=_links(scenario, len(devices), values, beside),
        split=tuple(given) if given is not None else even_split(model.layers, len(devices)),
    )
    options = tuple((name.removeprefix(OPTION), value) for name, value in point if name.startswith(OPTION))
    return Case(emulated.name, point, emulation, options)


def _links(
    scenario: Scenario, stages: int, values: dict[str, float], beside: Path
) -> tuple[LinkProfile, ...]:
    senders = [*(f"v{i + 1}" for i in range(stages)), "d0"]
    unknown = sorted(set(scenario.links.hops) - set(senders))
    if unknown:
        raise BadRequestError(
            f"links.hops: {', '.join(unknown)} is no device; there are {', '.join(senders)}"
        )
    swept: dict[str, float] = {name: values[name] for name in ("mbps", "latency_ms") if name in values}
    return tuple(
        _link(scenario.links.hops.get(sender, scenario.links.default), swept, beside) for sender in senders
    )


def _link(choice: LinkChoice, swept: dict[str, float], beside: Path) -> LinkProfile:
    changes: dict[str, Any] = choice.model_dump(exclude={"profile"}, exclude_none=True)
    return library.link(choice.profile, beside).model_copy(update={**changes, **swept})


def make_plan(
    scenario: Scenario,
    all_cases: Sequence[Case],
    datasets: Sequence[Dataset],
    base: dict[str, Any],
    hit_rates: HitRates | None,
) -> Plan:
    """All runs; `base` is whatever else a result depends on (clock, models, code).

    `hit_rates` are those of the pair; without them SpecPipe has its default width.

    Raises CapacityError for a pipeline that does not fit its devices, BadRequestError for wrong options.
    """
    choose = partial(options_of, scenario, hit_rates)
    _check_memory(scenario, all_cases, datasets, choose)
    planner = _Planner(scenario, base, choose)
    cells = [
        planner.cell(case, strategy, dataset, temperature)
        for case in all_cases
        for dataset in datasets
        for temperature in scenario.temperatures
        for strategy in scenario.strategies
    ]
    return Plan(tuple(planner.tasks()), tuple(cells))


def options_of(scenario: Scenario, hit_rates: HitRates | None, case: Case, strategy: str) -> Options:
    """The options of a strategy in a case; those of the sweep go to whoever knows them.

    SpecPipe's width is chosen for the case unless it is given.
    """
    fixed = dict(scenario.strategy_options.get(strategy, {}))
    for name, value in case.options:
        try:
            make_strategy(strategy, {name: value})
        except BadRequestError:
            continue
        fixed[name] = value
    if strategy == SpecPipe.name and hit_rates is not None:
        fixed.setdefault("width", level_width(case.emulation, hit_rates))
    return tuple(sorted(fixed.items()))


class _Planner:
    def __init__(
        self, scenario: Scenario, base: dict[str, Any], choose: Callable[[Case, str], Options]
    ) -> None:
        self._scenario = scenario
        self._base = base
        self._choose = choose
        self._tasks: dict[tuple[tuple[int, ...], SamplingParams], dict[str, Run]] = {}
        self._sizes: dict[int, dict[str, Any]] = {}

    def cell(self, case: Case, strategy: str, dataset: Dataset, temperature: float) -> Cell:
        options = self._choose(case, strategy)
        keys: list[str] = []
        for seed in self._scenario.seeds:
            for index, prompt in enumerate(dataset.prompts):
                sampling = SamplingParams(temperature=temperature, seed=seed * 1_000_003 + index)
                for repeat in range(self._scenario.repeats):
                    run = self._run(case, strategy, options, prompt, sampling, repeat)
                    self._tasks.setdefault((prompt, sampling), {}).setdefault(run.key, run)
                    keys.append(run.key)
        return Cell(
            case, strategy, options, dataset.name, temperature, tuple(keys), len(self._scenario.seeds)
        )

    def tasks(self) -> Iterator[Task]:
        for (prompt, sampling), runs in self._tasks.items():
            yield Task(prompt, sampling, self._scenario.max_new_tokens, tuple(runs.values()))

    def _run(
        self,
        case: Case,
        strategy: str,
        options: Options,
        prompt: tuple[int, ...],
        sampling: SamplingParams,
        repeat: int,
    ) -> Run:
        scenario = self._scenario
        content = {
            **self._base,
            "strategy": strategy,
            "options": options,
            "emulation": self._emulation(case),
            "prompt": prompt,
            "sampling": [sampling.temperature, sampling.seed],
            "max_new_tokens": scenario.max_new_tokens,
            "prefill_rows": scenario.prefill_rows,
            "repeat": repeat,
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return Run(digest[:24], strategy, options, case.emulation, repeat * 7919, scenario.prefill_rows)

    def _emulation(self, case: Case) -> dict[str, Any]:
        if id(case) not in self._sizes:
            self._sizes[id(case)] = sizes_of(case.emulation)
        return self._sizes[id(case)]


def sizes_of(emulation: Emulation) -> dict[str, Any]:
    """The numbers of an emulation, without names, so that models of the same size share their runs."""
    prose = {"title", "source", "drafters"}
    return {
        "model": emulation.model.model_dump(exclude=prose),
        "quant": emulation.quant,
        "drafter": emulation.drafter.model_dump(),
        "drafting": [size.model_dump() for size in emulation.drafting],
        "devices": [device.model_dump(exclude=prose) for device in (emulation.draft_node, *emulation.stages)],
        "links": [link.model_dump(exclude=prose) for link in emulation.links],
        "split": list(emulation.split),
    }


def _check_memory(
    scenario: Scenario,
    all_cases: Sequence[Case],
    datasets: Sequence[Dataset],
    choose: Callable[[Case, str], Options],
) -> None:
    longest = max(len(prompt) for dataset in datasets for prompt in dataset.prompts)
    for case in all_cases:
        rows = [
            make_strategy(strategy, dict(choose(case, strategy))).max_draft_rows
            for strategy in scenario.strategies
        ]
        require_fit(case.emulation, longest + scenario.max_new_tokens + max(rows))
