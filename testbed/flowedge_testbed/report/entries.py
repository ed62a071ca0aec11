"""Entries of the results, as reports group them: by method and kind of drafting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean
from typing import Any, TypeAlias

from flowedge.core.request import Noise
from flowedge_testbed.scenario import OPTION

Entry: TypeAlias = dict[str, Any]


def safe_name(name: str) -> str:
    """Return a name that a file can have."""
    return "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in name)


@dataclass(frozen=True)
class Variant:
    """A method with a kind of drafting."""

    method: str
    noise: Noise

    @property
    def plain(self) -> bool:
        """Whether the method drafts as published."""
        return self.noise == "plain"

    @property
    def label(self) -> str:
        return self.method if self.plain else f"{self.method}, shared noise"

    @property
    def file_name(self) -> str:
        return safe_name(self.method if self.plain else f"{self.method}-{self.noise}")

    def of(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries of this variant."""
        return [entry for entry in entries if variant_of(entry) == self]


def variant_of(entry: Entry) -> Variant:
    return Variant(entry["method"], entry["noise"])


def variants(entries: Sequence[Entry]) -> list[Variant]:
    """Return all variants, in the order in which they first come."""
    return list(dict.fromkeys(map(variant_of, entries)))


def at_point(entry: Entry) -> str:
    """Return the point of the sweep in words, such as "mbps 125, depth 4"; "" if nothing is swept."""
    return ", ".join(f"{axis.removeprefix(OPTION)} {value:g}" for axis, value in entry["point"].items())


def place_of(entry: Entry) -> str:
    """Return the name of an entry's pipeline, with the point of the sweep if there is one."""
    return ", ".join(filter(None, (entry["profile"], at_point(entry))))


def unique(values: Iterable[Any]) -> list[Any]:
    """Return the values without repetitions, in the order in which they first come."""
    return list(dict.fromkeys(values))


def mean_of(entries: Sequence[Entry], name: str) -> float | None:
    """Return the mean of a figure over entries; None if an entry lacks it."""
    values = [entry[name] for entry in entries]
    return fmean(values) if values and all(value is not None for value in values) else None


def groups(
    entries: Sequence[Entry], name_of: Callable[[Entry], str] = itemgetter("profile")
) -> Iterator[tuple[str, float, Variant, list[Entry]]]:
    """Yield the entries of each model, temperature and variant; or of each place, with `place_of`."""
    keys = unique((name_of(e), e["temperature"], variant_of(e)) for e in entries)
    for name, temperature, variant in keys:
        own = [e for e in variant.of(entries) if (name_of(e), e["temperature"]) == (name, temperature)]
        yield name, temperature, variant, own
