"""Models and methods whose results are equal: pictures show them once, under a label that names all."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from flowedge_testbed.report.entries import Entry, Variant, unique, variants

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


def _grouped(
    keys: Sequence[T], entries_of: Callable[[T], Sequence[Entry]], names: Sequence[str]
) -> list[tuple[T, ...]]:
    """Return the keys, those together whose entries differ in nothing but their names."""
    groups: dict[str, list[T]] = {}
    for key in keys:
        results = [{name: value for name, value in e.items() if name not in names} for e in entries_of(key)]
        groups.setdefault(json.dumps(results, sort_keys=True), []).append(key)
    return [tuple(group) for group in groups.values()]
