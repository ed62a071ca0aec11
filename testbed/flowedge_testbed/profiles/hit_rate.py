"""Hit rates: how often a tree level of a given width holds the drawn token."""

from __future__ import annotations

from pydantic import Field

from flowedge.profiling.documents.model import YamlDocument


class HitRates(YamlDocument):
    """The hit rates of a target and a drafter, measured by `python -m testbed.tools.hit_rates`.

    Attributes:
        model, drafter: their fingerprints.
        rates: share of levels that hold the drawn token, by the width of the tree.
    """

    title: str
    source: str
    model: str
    drafter: str
    rates: dict[int, float] = Field(min_length=1)
