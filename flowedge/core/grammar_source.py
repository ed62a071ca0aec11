"""The grammar that an answer must follow, as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from flowedge.core.errors import GrammarError

GrammarKind: TypeAlias = Literal["json_object", "json_schema", "lark", "regex"]
MAX_GRAMMAR = 128 << 10  # characters


@dataclass(frozen=True)
class GrammarSource:
    """What the answer must be: a JSON object, JSON of a schema, or a text of a Lark grammar or a regex.

    Attributes:
        text: the schema, the grammar or the regular expression; empty for a JSON object.
        ends_late: whether the answer ends only where nothing but its end is allowed (see ignore_eos).

    Raises:
        GrammarError: when the text is empty or too long.
    """

    kind: GrammarKind
    text: str = ""
    ends_late: bool = False

    def __post_init__(self) -> None:
        if self.kind != "json_object" and not self.text.strip():
            raise GrammarError(f"{self.parameter} is empty; give its text, or leave it out")
        if len(self.text) > MAX_GRAMMAR:
            raise GrammarError(
                f"{self.parameter} has {len(self.text)} characters; at most {MAX_GRAMMAR} are taken"
            )

    @property
    def parameter(self) -> str:
        """The parameter that it came by, for messages."""
        return f"grammar ({self.kind})"
