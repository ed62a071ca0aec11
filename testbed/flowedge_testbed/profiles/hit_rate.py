"""How often a tree level of some width holds the token that is drawn, for a pair of models."""

from __future__ import annotations

from pydantic import Field

from flowedge.profiling.documents.document import YamlDocument


class HitRates(YamlDocument):
    """Measured by `python -m testbed.tools.hit_rates`.

    Attributes:
        model, drafter: fingerprints of the pair it was measured with.
        rates: share of levels with the drawn token in them, by the width of the tree.
    """

    title: str
    source: str
    model: str
    drafter: str
    rates: dict[int, float] = Field(min_length=1)
