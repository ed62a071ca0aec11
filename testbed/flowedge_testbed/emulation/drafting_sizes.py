"""Sizes of the drafters that a session can join, also of drafters without weights."""

from __future__ import annotations

from typing import Literal

from flowedge.profiling.documents.model import DrafterSize, YamlDocument


class NGramSize(YamlDocument):
    """Lookup in the session's own tokens: no weights, and the same small time with every emulated model."""

    kind: Literal["ngram"]


class RecallSize(YamlDocument):
    """An EAGLE head's errors in a session, which are read for each forward of the head."""

    kind: Literal["recall"]


DraftingSize = DrafterSize | NGramSize | RecallSize
