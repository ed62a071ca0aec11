"""What the figures of a report rest on, in words: devices, models, prompts. Every picture carries them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from flowedge.drafting.choice import BUNDLED, BUNDLED_EAGLE3, BUNDLED_SMALL, BUNDLED_TARGET, NGRAM
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.prompts import OWN
from flowedge_testbed.real_pipeline import RealPipeline
from flowedge_testbed.report.entries import unique
from flowedge_testbed.runs import Case, Setup
from flowedge_testbed.scenario import Scenario

_BUNDLED_DRAFTERS = {
    BUNDLED: "its EAGLE head",
    BUNDLED_EAGLE3: "its EAGLE-3 head",
    BUNDLED_SMALL: "the bundled small model",
    BUNDLED_TARGET: "itself",
    NGRAM: "n-gram lookup",
}
_CLOCKS = {
    "replay": "time: virtual clock, replayed",
    "virtual": "time: virtual clock",
    "paced": "time: agents held to the emulated devices' time",
    "real": "time: measured",
}


@dataclass(frozen=True)
class Origin:
    """What the figures rest on.

    Attributes:
        devices: what is emulated, or which devices were measured.
        tokens: the models that supplied the tokens, and whose speeds are shown.
        prompts: prompts, temperatures, length of the answers and the clock.
    """

    devices: str
    tokens: str
    prompts: str

    @property
    def lines(self) -> tuple[str, ...]:
        return (self.devices, self.tokens, self.prompts)


def origin_of(
    scenario: Scenario, cases: Sequence[Case], datasets: Mapping[str, Mapping[str, Any]], models: ModelSet
) -> Origin:
    """Return the origin of all figures of a report.

    Args:
        datasets: of results.json, by name, each with its number of `prompts`.
    """
    return Origin(
        devices_phrase([case.setup for case in cases]),
        tokens_phrase(models, cases[0].setup),
        f"{_prompts(datasets, scenario)}, {_settings(scenario, scenario.temperatures)}",
    )


def origin_of_request(
    scenario: Scenario, setups: Sequence[Setup], dataset: str, temperature: float, models: ModelSet
) -> Origin:
    """Return the origin of the first request of a dataset, on pipelines with equal results."""
    return Origin(
        devices_phrase(setups),
        tokens_phrase(models, setups[0]),
        f"1 prompt, the first of {_dataset(dataset)}, {_settings(scenario, [temperature])}",
    )


def devices_phrase(setups: Sequence[Setup]) -> str:
    """Return which models run on which devices and links."""
    real = next((setup for setup in setups if isinstance(setup, RealPipeline)), None)
    if real is not None:
        return f"measured, nothing is emulated: {real.name} on {real.hosts}"
    emulations = [setup for setup in setups if isinstance(setup, PipelineProfile)]
    equal: dict[str, list[str]] = {}
    for emulation in emulations:
        same = str({**emulation.sizes(), "devices": 0, "links": 0, "split": 0})
        equal.setdefault(same, []).append(f"{emulation.model.title} {emulation.format_name}")
    models = ", ".join(" = ".join(unique(titles)) for titles in equal.values())
    return f"emulated: {models} on {_hardware(emulations)}; {_links(emulations)}"


def _hardware(emulations: Sequence[PipelineProfile]) -> str:
    counts = unique(emulation.num_stages for emulation in emulations)
    kinds = unique((each.draft_node.title, *unique(s.title for s in each.stages)) for each in emulations)
    if len(kinds) > 1:
        every = ", ".join(unique(title for titles in kinds for title in titles))
        return f"{len(emulations)} pipelines of {_range(counts)} stages, made of {every}"
    draft_node = emulations[0].draft_node.title
    titles = [device.title for device in emulations[0].stages]
    middles = [device.title for middle in emulations[0].middles for device in middle.devices]
    beside = f", middle models on {_listed(middles)}" if middles else ""
    if len(counts) > 1:
        stages = f"{min(counts)} to {max(counts)} stages of {' / '.join(unique(titles))}"
        return f"{stages}, draft node {draft_node}{beside}"
    if set(titles) == {draft_node}:
        return f"{1 + len(titles)} x {draft_node} (draft node and {_count(len(titles), 'stage')}){beside}"
    return f"{_listed(titles)}, draft node {draft_node}{beside}"


def _listed(titles: Sequence[str]) -> str:
    return " + ".join(f"{len(list(same))} x {title}" for title, same in groupby(titles))


def _links(emulations: Sequence[PipelineProfile]) -> str:
    links = [link for emulation in emulations for link in emulation.links]
    rates, latencies = _range(link.mbps for link in links), _range(link.latency_ms for link in links)
    return f"links of {rates} Mbit/s and {latencies} ms"


def _range(values: Iterable[float]) -> str:
    known = sorted(set(values))
    return f"{known[0]:g}" if len(known) == 1 else f"{known[0]:g} to {known[-1]:g}"


def tokens_phrase(models: ModelSet, setup: Setup) -> str:
    """Return which real models supply the tokens, and whose speeds are shown."""
    facts, kept = models.facts, models.kept
    millions = "" if facts.parameters is None else f"{facts.parameters / 1e6:.3g} M"
    if facts.title == BUNDLED:
        model = f"the bundled {millions} model"
    else:
        model = f"{facts.title}{f' ({millions} parameters)' if millions else ''}"
    if (facts.dtype, facts.device) != ("float32", "cpu"):
        model += f" in {facts.dtype} on {facts.device}"
    if kept is not None:
        model += f", read from {kept.file.name},"
    drafters = [_BUNDLED_DRAFTERS.get(name, _short(name)) for name in models.drafter_names]
    middles = f", middle models {', '.join(map(_short, models.middle_names))}" if models.middle_names else ""
    phrase = f"tokens by {model} and {' and '.join(drafters)}{middles}"
    if isinstance(setup, RealPipeline):
        return f"{phrase}; speeds are those of these models on these devices"
    return f"{phrase}; speeds are those of the emulated models and devices"


def _short(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]


def _prompts(datasets: Mapping[str, Mapping[str, Any]], scenario: Scenario) -> str:
    counts = {name: int(found["prompts"]) for name, found in datasets.items()}
    names = ", ".join(map(_dataset, counts))
    total = _count(sum(counts.values()), "prompt")
    if len(counts) == 1:
        shown = f"{total} of {names}"
    elif len(set(counts.values())) == 1:
        shown = f"{total} ({next(iter(counts.values()))} each of {names})"
    else:
        shown = f"{total} ({', '.join(f'{_dataset(name)} {count}' for name, count in counts.items())})"
    which = [f"after the first {scenario.skip}"] if scenario.skip else []
    which += [f"up to {scenario.turns} turns each"] if scenario.turns > 1 else []
    which += [f"{len(scenario.seeds)} seeds"] if len(scenario.seeds) > 1 else []
    return ", ".join([shown, *which])


def _dataset(name: str) -> str:
    return "the project's own" if name == OWN else name


def _settings(scenario: Scenario, temperatures: Sequence[float]) -> str:
    degrees = " and ".join(f"{temperature:g}" for temperature in temperatures)
    filters = f", top-p {scenario.top_p:g}" if scenario.top_p < 1 else ""
    filters += f", top-k {scenario.top_k}" if scenario.top_k else ""
    return (
        f"temperature {degrees}{filters}, at most {_count(scenario.max_new_tokens, 'new token')}; "
        f"{_CLOCKS[scenario.clock]}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
