"""Models and methods whose results are equal: pictures show them once, under a label that names all."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from flowedge_testbed.report.entries import Entry, Variant, at_point, mean_of, unique, variants

_NAMES_OF_MODELS = ("profile", "model")
_NAMES_OF_METHODS = ("method", "options", "noise")

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class EqualModels:
    """Emulated models with equal results: of the same sizes, devices and links.

    Attributes:
        profiles: their names; the entries of the first stand for all.
    """

    profiles: tuple[str, ...]

    @property
    def label(self) -> str:
        return " = ".join(self.profiles)

    def of(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries of the first model."""
        return [entry for entry in entries if entry["profile"] == self.profiles[0]]


@dataclass(frozen=True)
class EqualVariants:
    """Methods with equal results, such as pipedec and specpipe with trees of the same width.

    Attributes:
        members: the entries of the first stand for all.
    """

    members: tuple[Variant, ...]

    @property
    def first(self) -> Variant:
        return self.members[0]

    @property
    def label(self) -> str:
        """The names of all members; the kind of drafting is named once if all share it."""
        if all(member.noise == self.first.noise for member in self.members):
            return replace(self.first, method=" = ".join(member.method for member in self.members)).label
        return " = ".join(member.label for member in self.members)


def equal_models(entries: Sequence[Entry]) -> list[EqualModels]:
    """Return the models in the order in which they first come, those with equal results together."""
    profiles = unique(entry["profile"] for entry in entries)
    found = _grouped(profiles, lambda name: [e for e in entries if e["profile"] == name], _NAMES_OF_MODELS)
    return [EqualModels(names) for names in found]


def equal_variants(entries: Sequence[Entry]) -> list[EqualVariants]:
    """Return the methods in the order in which they first come, those with equal results together."""
    found = _grouped(variants(entries), lambda variant: variant.of(entries), _NAMES_OF_METHODS)
    return [EqualVariants(members) for members in found]


@dataclass(frozen=True)
class Panel:
    """What a panel shows: the methods on equal models, at one temperature and one point of the sweep."""

    models: EqualModels
    temperature: float
    entries: Sequence[Entry]
    methods: Sequence[EqualVariants]

    @property
    def title(self) -> str:
        points = unique(map(at_point, self.entries))
        return ", ".join(filter(None, (self.models.label, *points, f"temperature {self.temperature:g}")))

    def speed(self, method: EqualVariants, dataset: str | None) -> float | None:
        """Return tokens/s on a dataset, or as a mean over all; None if the method did not run there."""
        own = [e for e in method.first.of(self.entries) if dataset is None or e["dataset"] == dataset]
        return mean_of(own, "tokens_per_s")


def panels(entries: Sequence[Entry]) -> list[Panel]:
    """Return the panels of all entries, with equal models and, within a panel, equal methods only once."""
    found = []
    for models in equal_models(entries):
        own = models.of(entries)
        for temperature, point in unique((entry["temperature"], at_point(entry)) for entry in own):
            mine = [entry for entry in own if (entry["temperature"], at_point(entry)) == (temperature, point)]
            found.append(Panel(models, temperature, mine, equal_variants(mine)))
    return found


def by_temperature(entries: Sequence[Entry]) -> Iterator[tuple[EqualModels, float, list[Entry]]]:
    """Yield the entries of each model at each temperature, at all points of the sweep; equal models once."""
    for models in equal_models(entries):
        own = models.of(entries)
        for temperature in unique(entry["temperature"] for entry in own):
            yield models, temperature, [entry for entry in own if entry["temperature"] == temperature]


def _grouped(
    keys: Sequence[T], entries_of: Callable[[T], Sequence[Entry]], names: Sequence[str]
) -> list[tuple[T, ...]]:
    """Return the keys, those together whose entries differ in nothing but their names."""
    groups: dict[str, list[T]] = {}
    for key in keys:
        results = [{name: value for name, value in e.items() if name not in names} for e in entries_of(key)]
        groups.setdefault(json.dumps(results, sort_keys=True), []).append(key)
    return [tuple(group) for group in groups.values()]
