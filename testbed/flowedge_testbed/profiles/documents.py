"""Documents about the tokens of models: hit rates of drafters, and rankings of tokens."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowedge.planning.profile.model import YamlDocument


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


class TokenRanking(YamlDocument):
    """The tokens of a target, written by `python -m testbed.tools.drafters.draft_vocabulary`.

    Attributes:
        model: the target's fingerprint.
        ids: all its tokens, the most frequent first.
    """

    title: str
    source: str
    model: str
    ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
