"""A scenario: the methods, models, devices and prompts of a benchmark, as a YAML file gives them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    ValidationError,
    model_validator,
)

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import VerificationChoice
from flowedge.core.request import NOISES, Noise
from flowedge.core.sampling import SamplingParams
from flowedge.planning.profile.profile_files import explain, read_document
from flowedge.strategies.choice import STRATEGIES
from flowedge.strategies.registry import make_strategy
from flowedge_testbed.emulation.place import Count, Devices, Emulated, Links, Place
from flowedge_testbed.emulation.published_places import published_place
from flowedge_testbed.emulation.system_choice import SystemChoice
from flowedge_testbed.prompts import PromptChoice
from flowedge_testbed.scenario_parts import (
    Hosts,
    LoadChoice,
    MethodVariant,
    ModelSetNames,
    Quick,
    ReportChoice,
)

ClockName = Literal["virtual", "replay", "paced", "real"]
OPTION = "option."  # begins the name of a sweep axis that is a strategy option
SHIPPED = Path(__file__).parent / "scenarios"  # in its folder papers, one for each experiment of a paper


class Scenario(SystemChoice):
    """A whole benchmark.

    Attributes:
        clock: the source of time if `--clock` is not given: virtual, replay, paced or real.
        devices, links, emulated: the emulated pipeline. The real clock needs none of them; if `devices` are
            given, it takes titles and power from their profiles.
        places: emulated pipelines by name, in place of these three.
        strategies: the methods to run, by name: strategies, and methods of `variants`.
        strategy_options: options by strategy. They hold for its variants too.
        variants: further methods by name.
        verification: where the target's tokens are drawn, by method; or one place for all methods. A variant
            follows its strategy. Methods that are not named draw where their papers do, and methods of no
            paper where it costs less (auto).
        datasets: JSON-lines files by name, in the directory of `--data` or beside the scenario.
        sweep: values by axis (mbps, latency_ms, stages, option.NAME); all combinations are run.
        top_p, top_k: filters of the tokens that are drawn, as of a request; 1 and 0 keep all tokens. At
            temperature 0 they change nothing.
        noise: kinds of drafting. Above temperature 0 every method that drafts is run with each of them.
        samples: prompts of each dataset.
        skip: prompts at the beginning of each file that are not used.
        turns: most turns of a conversation that are asked. Each prompt holds the turns and answers before it.
        repeats: runs of each prompt, each with another seed of the links' jitter.
        load: many requests at a time, in place of each prompt by itself.
    """

    name: str
    title: str
    clock: ClockName = "replay"
    pair: ModelSetNames = ModelSetNames()
    devices: Devices | None = None
    links: Links | None = None
    hosts: Hosts | None = None
    emulated: list[Emulated] = Field(default_factory=list)
    places: dict[str, Place] = Field(default_factory=dict)
    strategies: list[str] = Field(min_length=1)
    strategy_options: dict[str, dict[str, float]] = Field(default_factory=dict)
    variants: dict[str, MethodVariant] = Field(default_factory=dict)
    verification: VerificationChoice | dict[str, VerificationChoice] = Field(default_factory=dict)
    datasets: dict[str, str] = Field(min_length=1)
    temperatures: list[Annotated[float, Field(ge=0)]] = Field(min_length=1)
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    noise: list[Noise] = Field(default=list(NOISES), min_length=1)
    samples: Count = 20
    skip: Annotated[int, Field(ge=0)] = 0
    turns: Count = 1
    max_new_tokens: Count = 128
    prefill_rows: Count = 128
    seeds: list[Annotated[int, Field(ge=0)]] = Field(default=[0], min_length=1)
    repeats: Count = 1
    sweep: dict[str, list[float]] = Field(default_factory=dict)
    load: LoadChoice | None = None
    quick: Quick = Quick()
    report: ReportChoice = ReportChoice()

    @model_validator(mode="after")
    def _names_are_known(self) -> Scenario:
        for name in self.variants:
            if name in STRATEGIES:
                raise ValueError(f"variant {name!r} has the name of a strategy; give it another")
        of_variants = [variant.strategy for variant in self.variants.values()]
        drawing = () if isinstance(self.verification, str) else self.verification
        methods = [name for name in [*self.strategies, *drawing] if name not in self.variants]
        for strategy in [*methods, *of_variants, *self.strategy_options]:
            if strategy not in STRATEGIES:
                known = ", ".join((*STRATEGIES, *self.variants))
                raise ValueError(f"unknown strategy {strategy!r}; known are {known}")
        for axis in [*self.sweep, *(self.quick.sweep or {})]:
            if axis not in ("mbps", "latency_ms", "stages") and not axis.startswith(OPTION):
                raise ValueError(
                    f"unknown sweep axis {axis!r}; known are mbps, latency_ms, stages and option.NAME"
                )
        return self

    @model_validator(mode="after")
    def _can_show_the_sweep(self) -> Scenario:
        if "sweep" in (*self.report.tables, *self.report.plots) and len(self.sweep) > 2:
            raise ValueError(
                f"report: a sweep is shown along one axis or two, and this has {len(self.sweep)}; leave "
                "`sweep` out of tables and plots, or sweep fewer axes"
            )
        return self

    @model_validator(mode="after")
    def _emulates_one_way(self) -> Scenario:
        if self.places and (self.devices is not None or self.links is not None or self.emulated):
            raise ValueError("places stand in place of devices, links and emulated; give one or the other")
        return self

    @model_validator(mode="after")
    def _pair_fits_the_clock(self) -> Scenario:
        if self.clock in ("paced", "real") and (self.pair.dtype is not None or self.pair.device == "cuda"):
            raise ValueError(
                f"pair.dtype and pair.device are of models in this process; on the {self.clock} clock agents "
                "compute, so leave them out"
            )
        if self.pair.paths is not None and self.clock != "replay":
            raise ValueError(
                f"pair.paths {self.pair.paths!r} stands for the target, which the {self.clock} clock "
                "computes; use --clock replay, or name the model and no paths"
            )
        return self

    @model_validator(mode="after")
    def _load_is_of_methods(self) -> Scenario:
        if self.load is None:
            return self
        unknown = sorted(set(self.load.static_batches) - {*self.strategies, *self.variants})
        if unknown:
            raise ValueError(f"load.static_batches names {', '.join(unknown)}, which is no method here")
        longest = self.max_new_tokens if self.load.new_tokens is None else self.load.new_tokens[1]
        if longest > self.max_new_tokens:
            raise ValueError(f"load.new_tokens goes up to {longest}, max_new_tokens is {self.max_new_tokens}")
        if len(self.seeds) > 1 or self.repeats > 1 or self.turns > 1 or self.pair.middles:
            raise ValueError("a load takes one seed, one repeat, one turn and no middle models")
        if any(self.is_tuned(name) for name in self.strategies):
            raise ValueError("a load takes no tuned variants; give the options of each")
        return self

    @classmethod
    def checked(cls, content: dict[str, Any], where: str) -> Scenario:
        """Return the scenario with these values, which come from `where`.

        Raises:
            BadRequestError: when a value is wrong; it names `where`, the key and the reason.
        """
        try:
            scenario = cls.model_validate(content)
        except ValidationError as error:
            raise BadRequestError(f"{where}: {explain(error)}") from error
        scenario.check_options()
        return scenario

    def emulated_places(self) -> list[tuple[str | None, Place]]:
        """Return every emulated pipeline; its name is None if the scenario gives no `places`."""
        if self.devices is None or self.links is None:
            return list(self.places.items())
        return [
            (None, Place(devices=self.devices, links=self.links, emulated=emulated))
            for emulated in self.emulated
        ]

    def method(self, name: str) -> tuple[str, dict[str, float]]:
        """Return the strategy of a method, and its options."""
        variant = self.variants.get(name, MethodVariant(strategy=name))
        return variant.strategy, {**self.strategy_options.get(variant.strategy, {}), **variant.options}

    def is_tuned(self, name: str) -> bool:
        """Return whether a method is tuned by place."""
        return name in self.variants and bool(self.variants[name].tuned)

    def tried(self, name: str) -> list[dict[str, float]]:
        """Return the settings to try of a method, over its own options: none of them, which is {}, first."""
        tuned = self.variants[name].tuned if self.is_tuned(name) else {}
        combined = [dict(zip(tuned, values, strict=True)) for values in itertools.product(*tuned.values())]
        return [{}, *filter(None, combined)]

    def sampling(self, temperature: float, seed: int) -> SamplingParams:
        """Return how the tokens of a request are drawn; at temperature 0 filters change nothing."""
        if temperature == 0:
            return SamplingParams(seed=seed)
        return SamplingParams(temperature, self.top_k, self.top_p, seed)

    @property
    def prompt_choice(self) -> PromptChoice:
        return PromptChoice(self.samples, self.skip, self.turns)

    def verification_of(self, name: str) -> VerificationChoice:
        """Return where the target's tokens are drawn for a method."""
        if isinstance(self.verification, str):
            return self.verification
        strategy, _ = self.method(name)
        named = (self.verification[key] for key in (name, strategy) if key in self.verification)
        return next(named, published_place(strategy))

    def system_choice(self, name: str) -> SystemChoice:
        """Return what is chosen about the system that runs a method."""
        return self.variants.get(name, MethodVariant(strategy=name)).over(self)

    def noises(self, name: str, temperature: float) -> list[Noise]:
        """Return the kinds of drafting that a method is run with.

        At temperature 0, and for a method without a draft, all kinds are the same, and only `plain` is run.
        """
        drafts = make_strategy(*self.method(name)).needs_drafter
        variant = self.variants.get(name)
        kinds = self.noise if variant is None or variant.noise is None else variant.noise
        return list(dict.fromkeys(kinds)) if drafts and temperature > 0 else ["plain"]

    def check_options(self) -> None:
        """Check the options of every method.

        Raises:
            BadRequestError: when a strategy has no such option, or its value is out of range.
        """
        for name in self.strategies:
            strategy, options = self.method(name)
            for setting in self.tried(name):
                make_strategy(strategy, options | setting)

    def quickened(self) -> Scenario:
        """Return the scenario as `--quick` runs it."""
        quick = self.quick
        names = quick.datasets if quick.datasets is not None else list(self.datasets)
        changes = {
            "samples": quick.samples,
            "max_new_tokens": quick.max_new_tokens,
            "datasets": {name: file for name, file in self.datasets.items() if name in names},
            "temperatures": quick.temperatures or self.temperatures,
            "sweep": self.sweep if quick.sweep is None else quick.sweep,
            "load": self.load if quick.load is None else quick.load,
        }
        return self.model_copy(update=changes)


def read_scenario(path: Path) -> Scenario:
    """Read a scenario.

    Raises:
        BadRequestError: when the file cannot be read or a value is wrong; it names the file and the key.
    """
    scenario = read_document(path, Scenario)
    scenario.check_options()
    return scenario


def shipped_scenarios() -> dict[str, Path]:
    """Return the files of the shipped scenarios by name."""
    return {path.stem: path for path in sorted(SHIPPED.rglob("*.yaml"))}


def find_scenario(named: str) -> Path:
    """Return the file of a scenario: that of a shipped scenario's name, or the path itself.

    Raises:
        BadRequestError: when `named` is neither; it lists the shipped scenarios.
    """
    shipped = shipped_scenarios()
    if named in shipped:
        return shipped[named]
    path = Path(named)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return path
    raise BadRequestError(
        f"there is no scenario {named!r}; give a .yaml file, or a shipped scenario: {', '.join(shipped)}"
    )
