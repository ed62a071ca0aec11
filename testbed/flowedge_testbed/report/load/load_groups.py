"""Entries of load points in the groups that a report shows: places, and methods within them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowedge_testbed.load.arrivals import LoadPoint
from flowedge_testbed.report.entries import Entry, Variant, place_of, safe_name, unique, variant_of


@dataclass(frozen=True)
class LoadPlace:
    """The load points of one kind on a pipeline, at a temperature.

    Attributes:
        place: the name of the pipeline, with the point of the sweep if there is one.
        kind: clients or arrivals_per_s.
    """

    place: str
    temperature: float
    kind: str
    entries: tuple[Entry, ...]

    @property
    def label(self) -> str:
        return f"{self.place}, temperature {self.temperature:g}"

    @property
    def file_name(self) -> str:
        """The name for a picture, without its suffix."""
        return safe_name(
            f"load-{self.place}-{self.temperature:g}{'-arrivals' if self.kind != 'clients' else ''}"
        )

    @property
    def values(self) -> list[float]:
        """The load points, in their order."""
        return unique(entry["at"] for entry in self.entries)

    @property
    def variants(self) -> list[Variant]:
        return unique(map(variant_of, self.entries))

    def line(self, variant: Variant, figure: str) -> list[float | None]:
        """Return a figure of a method at each load point; None where it has none."""
        own = {entry["at"]: entry[figure] for entry in variant.of(self.entries)}
        return [own.get(value) for value in self.values]


def load_places(entries: Sequence[Entry]) -> list[LoadPlace]:
    """Return the groups of all entries, in the order in which they first come."""
    groups: dict[tuple[str, float, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((place_of(entry), entry["temperature"], entry["load"]), []).append(entry)
    return [LoadPlace(*key, tuple(members)) for key, members in groups.items()]


def point_label(entry: Entry) -> str:
    """Return the load point of an entry in words."""
    return LoadPoint(entry["load"], entry["at"]).label
