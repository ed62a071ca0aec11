"""The plan of a scenario with load: a run for each method, pipeline and load point."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from flowedge.core.errors import BadRequestError
from flowedge.core.request import Noise, Request
from flowedge.planning.memory_fit import require_fit
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.strategies.registry import make_strategy
from flowedge_testbed.load.arrivals import (
    Arrivals,
    ClosedLoop,
    LoadPoint,
    LoadRequest,
    PoissonArrivals,
    RequestList,
    StaticBatches,
)
from flowedge_testbed.plan import events_content, options_of, system_of
from flowedge_testbed.profiles.documents import HitRates
from flowedge_testbed.prompts import Dataset
from flowedge_testbed.runs import Case, Options, Run
from flowedge_testbed.scenario import Scenario
from flowedge_testbed.scenario_parts import LoadChoice


@dataclass(frozen=True)
class LoadRun:
    """All requests of a load point by one method on one pipeline.

    Attributes:
        counted: numbers of the requests that are measured. Those before are warm-up. Those behind keep the
            load up until the last counted answer is complete.
        static_batches: whether requests begin in batches (see StaticBatches).
    """

    run: Run
    point: LoadPoint
    counted: range
    think_s: float
    static_batches: bool

    @property
    def key(self) -> str:
        return self.run.key

    def arrivals(self, requests: RequestList) -> Arrivals:
        """Return the source of the requests, at its beginning."""
        if self.point.kind == "arrivals_per_s":
            return PoissonArrivals(requests, self.point.value)
        loop = StaticBatches if self.static_batches else ClosedLoop
        return loop(requests, int(self.point.value), self.think_s)

    def request(self, asked: LoadRequest, eos: frozenset[int]) -> Request:
        """Return a request of the list as the draft node takes it."""
        return Request(
            session=f"{self.key}-{asked.number}",
            prompt=asked.prompt,
            sampling=asked.sampling,
            max_new_tokens=asked.max_new_tokens,
            eos=eos,
            strategy=self.run.strategy,
            strategy_options=dict(self.run.options),
            noise=self.run.noise,
        )


@dataclass(frozen=True)
class LoadTask:
    """The load points of a strategy on a pipeline, which share the requests."""

    requests: RequestList
    runs: tuple[LoadRun, ...]


@dataclass(frozen=True)
class LoadCell:
    """One entry of the results: a load point by a method on a case, at a temperature.

    Attributes:
        static_batches: whether the method is one of static batches, be there several clients or one.
    """

    case: Case
    method: str
    options: Options
    temperature: float
    noise: Noise
    load: LoadRun
    static_batches: bool


@dataclass(frozen=True)
class LoadPlan:
    """The tasks to carry out, and the entries of the results that their runs belong to."""

    tasks: tuple[LoadTask, ...]
    cells: tuple[LoadCell, ...]

    @property
    def num_runs(self) -> int:
        return sum(len(task.runs) for task in self.tasks)


def load_points(choice: LoadChoice) -> list[LoadPoint]:
    """Return the load points of a scenario, clients first."""
    clients = [LoadPoint("clients", float(number)) for number in choice.clients]
    return clients + [LoadPoint("arrivals_per_s", rate) for rate in choice.arrivals_per_s]


def make_load_plan(
    scenario: Scenario,
    all_cases: Sequence[Case],
    datasets: Sequence[Dataset],
    base: dict[str, Any],
    hit_rates: HitRates | None,
) -> LoadPlan:
    """Plan all runs of a scenario with load; the arguments are those of `make_plan`.

    Raises:
        CapacityError: when the sessions of a closed loop do not fit the devices of a pipeline.
        BadRequestError: when a strategy option is wrong, or the scenario has no load.
    """
    choice = scenario.load
    if choice is None:
        raise BadRequestError(f"scenario {scenario.name} has no load")
    choose = partial(options_of, scenario, hit_rates)
    prompts = tuple(prompt for dataset in datasets for prompt in dataset.prompts)
    new_tokens = choice.new_tokens or (scenario.max_new_tokens, scenario.max_new_tokens)
    tasks: dict[tuple[Any, ...], tuple[RequestList, dict[str, LoadRun]]] = {}
    cells: list[LoadCell] = []
    for place, case in enumerate(all_cases):
        sizes = {choice: setup.sizes() for choice, setup in case.drawing.items()}
        for temperature in scenario.temperatures:
            requests = RequestList(prompts, scenario.sampling(temperature, scenario.seeds[0]), new_tokens)
            for method in scenario.strategies:
                options = choose(case, method)
                _check_memory(scenario, choice, case, method, options, requests)
                for noise in scenario.noises(method, temperature):
                    own = sizes[case.places[method]]
                    content = {**base, "emulation": own, "requests": asdict(requests)}
                    # Variants of a strategy share its draft layers.
                    group = place, temperature, scenario.method(method)[0], noise
                    _, runs = tasks.setdefault(group, (requests, {}))
                    for point in load_points(choice):
                        run = _run(scenario, choice, case, method, options, noise, point, content)
                        run = runs.setdefault(run.key, run)
                        static = method in choice.static_batches
                        cells.append(LoadCell(case, method, options, temperature, noise, run, static))
    every = (LoadTask(requests, tuple(runs.values())) for requests, runs in tasks.values())
    return LoadPlan(tuple(every), tuple(cells))


def _run(
    scenario: Scenario,
    choice: LoadChoice,
    case: Case,
    method: str,
    options: Options,
    noise: Noise,
    point: LoadPoint,
    content: dict[str, Any],
) -> LoadRun:
    (strategy, _), system = scenario.method(method), system_of(scenario, method)
    first = choice.warm_up * (int(point.value) if point.kind == "clients" else 1)
    counted = range(first, first + choice.requests)
    static = method in choice.static_batches and point.value > 1  # batches of one client are its requests
    whole = {
        **content,
        "strategy": strategy,
        "options": options,
        "system": asdict(system),
        "noise": noise,
        "prefill_rows": scenario.prefill_rows,
        "point": asdict(point),
        "counted": [counted.start, counted.stop],
        "think_s": choice.think_s,
        "static_batches": static,
        **events_content(case.events),
    }
    key = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:24]
    run = Run(
        key, strategy, options, case.setup_of(method), 0, scenario.prefill_rows, noise, system, case.events
    )
    return LoadRun(run, point, counted, choice.think_s, static)


def _check_memory(
    scenario: Scenario,
    choice: LoadChoice,
    case: Case,
    method: str,
    options: Options,
    requests: RequestList,
) -> None:
    """Check that the caches of as many sessions as there are clients fit; arrivals have no such number."""
    setup = case.setup_of(method)
    if not isinstance(setup, PipelineProfile):
        return  # agents check their own memory
    strategy = make_strategy(scenario.method(method)[0], dict(options))
    each = max(map(len, requests.prompts)) + requests.new_tokens[1] + strategy.max_draft_rows
    require_fit(setup, each * max((1, *choice.clients)))
