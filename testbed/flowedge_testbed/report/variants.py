"""Methods with plain drafting and with shared noise, told apart in tables and plots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flowedge.core.request import Noise


@dataclass(frozen=True)
class Variant:
    """A method with a kind of drafting."""

    method: str
    noise: Noise

    @property
    def plain(self) -> bool:
        """Whether it is as published."""
        return self.noise == "plain"

    @property
    def label(self) -> str:
        return self.method if self.plain else f"{self.method}, shared noise"

    @property
    def file_name(self) -> str:
        return self.method if self.plain else f"{self.method}-{self.noise}"

    def of(self, entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The entries of the results that are of this variant."""
        return [entry for entry in entries if variant_of(entry) == self]


def variant_of(entry: dict[str, Any]) -> Variant:
    return Variant(entry["method"], entry["noise"])


def variants(entries: Sequence[dict[str, Any]]) -> list[Variant]:
    """All of them, in the order in which they first come."""
    return list(dict.fromkeys(map(variant_of, entries)))
