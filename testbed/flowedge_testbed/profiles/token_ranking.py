"""Rankings of tokens: by how often a target draws them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowedge.profiling.documents.model import YamlDocument


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
