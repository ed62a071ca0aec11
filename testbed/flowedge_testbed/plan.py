"""The plan of a benchmark: the single runs of a scenario, each with a key that finds its stored result."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import VerificationChoice
from flowedge.core.request import Noise
from flowedge.core.sampling import SamplingParams
from flowedge.planning.choices import with_retained_taps, with_verification
from flowedge.planning.memory_fit import require_fit
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.strategies.published.specpipe_db import SpecPipeDB
from flowedge.strategies.published.stepwise import SpecPipe
from flowedge.strategies.registry import make_strategy
from flowedge_testbed.emulation.changing_costs import Events, events_of
from flowedge_testbed.emulation.emulate import emulate
from flowedge_testbed.emulation.place import Place
from flowedge_testbed.emulation.published_places import AUTO
from flowedge_testbed.emulation.specpipe_width import level_width
from flowedge_testbed.emulation.system import OWN_SYSTEM, System
from flowedge_testbed.profiles.documents import HitRates
from flowedge_testbed.prompts import Dataset
from flowedge_testbed.real_pipeline import real_pipeline
from flowedge_testbed.runs import Case, Cell, Options, Point, Prompt, Run, RunPlan, Setup, Task
from flowedge_testbed.scenario import OPTION, Scenario

Asked: TypeAlias = Callable[[Dataset, int, SamplingParams], Sequence[Prompt]]  # int: index of the first turn
Chosen: TypeAlias = Callable[[Case, str, Mapping[str, float]], Options]  # of a method, with a setting
_OWN_SETTING: Mapping[str, float] = MappingProxyType({})


def first_turn(dataset: Dataset, index: int, sampling: SamplingParams) -> Sequence[Prompt]:  # noqa: ARG001
    """Return the prompt of a conversation's first turn."""
    return (dataset.prompts[index],)


def cases(scenario: Scenario, beside: Path) -> list[Case]:
    """Return every pipeline of a scenario; `beside` is the directory that .yaml names are relative to.

    Raises:
        BadRequestError: when the scenario lacks what its clock needs.
    """
    axes = [[(axis, value) for value in values] for axis, values in scenario.sweep.items()]
    points = list(itertools.product(*axes))
    if scenario.clock == "real":
        real = real_pipeline(scenario, beside)
        return [case_of(scenario, real.name, point, real.drawing) for point in points]
    places = scenario.emulated_places()
    if not places:
        raise BadRequestError(
            f"scenario {scenario.name} emulates nothing: --clock {scenario.clock} needs places, or devices, "
            "links and emulated; --clock real runs on hosts"
        )
    return [_case(scenario, name, place, point, beside) for name, place in places for point in points]


def _case(scenario: Scenario, name: str | None, place: Place, point: Point, beside: Path) -> Case:
    names, axes = scenario.pair, {axis: value for axis, value in point if not axis.startswith(OPTION)}
    even = place.emulated.split is None or "stages" in axes
    emulation = emulate(place, names.drafter, len(names.middles), axes, beside)
    kept_taps = place.emulated.kept_taps
    if kept_taps and scenario.clock != "replay":
        raise BadRequestError(
            f"kept_taps is for --clock replay: on the {scenario.clock} clock other layers are tapped than in "
            "the emulated model"
        )

    def drawing(choice: VerificationChoice) -> PipelineProfile:
        placed = with_verification(emulation, choice, even=even)
        return with_retained_taps(placed, kept_taps) if scenario.clock == "replay" else placed

    profile = name or f"{place.emulated.model}-{emulation.format_name}{emulation.drafter_format_name}"
    return case_of(scenario, profile, point, drawing, events_of(place.events, emulation))


def case_of(
    scenario: Scenario,
    profile: str,
    point: Point,
    drawing: Callable[[VerificationChoice], Setup],
    events: Events = (),
) -> Case:
    """Return the case whose pipeline `drawing` gives for each place of the draw."""
    places = {method: scenario.verification_of(method) for method in scenario.strategies}
    setups = {choice: drawing(choice) for choice in dict.fromkeys((*places.values(), AUTO))}
    return Case(profile, point, _point_options(point), setups, places, events)


def _point_options(point: Point) -> Options:
    return tuple((name.removeprefix(OPTION), value) for name, value in point if name.startswith(OPTION))


def make_plan(
    scenario: Scenario,
    all_cases: Sequence[Case],
    datasets: Sequence[Dataset],
    base: dict[str, Any],
    hit_rates: HitRates | None,
    asked: Asked = first_turn,
) -> RunPlan:
    """Plan all runs of a scenario.

    Args:
        base: everything else that results depend on: clock, models, code and versions.
        hit_rates: of the models; without them SpecPipe has its default width.
        asked: gives the prompts of a conversation.

    Raises:
        CapacityError: when a pipeline does not fit its devices.
        BadRequestError: when a strategy option is wrong.
    """
    choose = partial(options_of, scenario, hit_rates)
    planner = _Planner(scenario, base, choose, asked)
    cells = [
        planner.cell(case, method, setting, dataset, temperature, noise)
        for case in all_cases
        for dataset in datasets
        for temperature in scenario.temperatures
        for method in scenario.strategies
        for setting in scenario.tried(method)
        for noise in scenario.noises(method, temperature)
    ]
    plan = RunPlan(tuple(planner.tasks()), tuple(cells))
    longest = max(len(task.prompt) for task in plan.tasks)
    _check_memory(scenario, all_cases, longest + scenario.max_new_tokens, choose)
    return plan


def options_of(
    scenario: Scenario,
    hit_rates: HitRates | None,
    case: Case,
    method: str,
    setting: Mapping[str, float] = _OWN_SETTING,
) -> Options:
    """Return the options of a method in a case. An option of the sweep goes to every strategy that has it.

    The width of SpecPipe, with and without batches, follows from the case unless it is given.

    setting: of a tuned method; it takes the place of the method's own options.
    """
    strategy, own = scenario.method(method)
    fixed = {**own, **setting}
    for name, value in case.options:
        try:
            make_strategy(strategy, {name: value})
        except BadRequestError:
            continue
        fixed[name] = value
    made, setup = make_strategy(strategy, fixed), case.setup_of(method)
    if isinstance(made, SpecPipe | SpecPipeDB) and hit_rates and isinstance(setup, PipelineProfile):
        fixed.setdefault("width", level_width(setup, hit_rates, made.settings.groups))
    return tuple(sorted(fixed.items()))


def events_content(events: Events) -> dict[str, Any]:
    """Return what a run's key says of its events: nothing if it has none."""
    return {"events": [event.model_dump() for event in events]} if events else {}


def system_of(scenario: Scenario, method: str) -> System:
    """Return the system that runs a method.

    Raises:
        BadRequestError: when the clock has no other system than FlowEdge's own.
    """
    system = System.of(scenario.system_choice(method), scenario.method(method)[0])
    if system != OWN_SYSTEM and scenario.clock not in ("virtual", "replay"):
        raise BadRequestError(
            f"method {method} has another barrier, express or kv_pruning than FlowEdge's agents, which the "
            f"{scenario.clock} clock runs; use --clock replay or virtual"
        )
    return system


class _Planner:
    def __init__(self, scenario: Scenario, base: dict[str, Any], choose: Chosen, asked: Asked) -> None:
        self._scenario = scenario
        self._base = base
        self._choose = choose
        self._asked = asked
        self._tasks: dict[tuple[tuple[int, ...], SamplingParams], dict[str, Run]] = {}
        self._sizes: dict[int, dict[str, Any]] = {}

    def cell(
        self,
        case: Case,
        method: str,
        setting: Mapping[str, float],
        dataset: Dataset,
        temperature: float,
        noise: Noise,
    ) -> Cell:
        (strategy, _), options = self._scenario.method(method), self._choose(case, method, setting)
        system = system_of(self._scenario, method)
        keys: list[str] = []
        places: list[int] = []
        longest = 0
        for seed in self._scenario.seeds:
            for index in range(len(dataset.prompts)):
                sampling = self._scenario.sampling(temperature, seed * 1_000_003 + index)
                prompts = self._asked(dataset, index, sampling)
                for prompt, repeat in itertools.product(prompts, range(self._scenario.repeats)):
                    run = self._run(case, method, options, system, prompt, sampling, noise, repeat)
                    self._tasks.setdefault((prompt, sampling), {}).setdefault(run.key, run)
                    keys.append(run.key)
                    places.append(index)
                    longest = max(longest, len(prompt))
        made = make_strategy(strategy, dict(options))
        return Cell(
            case,
            method,
            strategy,
            options,
            dataset.name,
            temperature,
            noise,
            tuple(keys),
            len(self._scenario.seeds),
            tuple(places),
            longest + self._scenario.max_new_tokens + made.max_draft_rows,
            made.needs_drafter,
            tuple(setting.items()) if self._scenario.is_tuned(method) else None,
        )

    def tasks(self) -> Iterator[Task]:
        for (prompt, sampling), runs in self._tasks.items():
            yield Task(prompt, sampling, self._scenario.max_new_tokens, tuple(runs.values()))

    def _run(
        self,
        case: Case,
        method: str,
        options: Options,
        system: System,
        prompt: tuple[int, ...],
        sampling: SamplingParams,
        noise: Noise,
        repeat: int,
    ) -> Run:
        scenario, setup = self._scenario, case.setup_of(method)
        strategy, _ = scenario.method(method)
        content = {
            **self._base,
            "strategy": strategy,
            "options": options,
            "system": asdict(system),
            "emulation": self._sizes_of(setup),
            "prompt": prompt,
            "sampling": asdict(sampling),
            "noise": noise,
            "max_new_tokens": scenario.max_new_tokens,
            "prefill_rows": scenario.prefill_rows,
            "repeat": repeat,
            **events_content(case.events),
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return Run(
            digest[:24],
            strategy,
            options,
            setup,
            repeat * 7919,
            scenario.prefill_rows,
            noise,
            system,
            case.events,
        )

    def _sizes_of(self, setup: Setup) -> dict[str, Any]:
        if id(setup) not in self._sizes:
            self._sizes[id(setup)] = setup.sizes()
        return self._sizes[id(setup)]


def _check_memory(
    scenario: Scenario,
    all_cases: Sequence[Case],
    positions: int,
    choose: Chosen,
) -> None:
    """Check that a request of so many positions fits, with the draft rows of each method."""
    for case in all_cases:
        rows: dict[VerificationChoice, int] = {}
        for method in scenario.strategies:
            place = case.places[method]
            for setting in scenario.tried(method):
                strategy = make_strategy(scenario.method(method)[0], dict(choose(case, method, setting)))
                rows[place] = max(rows.get(place, 0), strategy.max_draft_rows)
        for place, most in rows.items():
            setup = case.drawing[place]
            if isinstance(setup, PipelineProfile):  # agents check their own memory
                require_fit(setup, positions + most)
