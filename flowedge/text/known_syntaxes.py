"""The known forms of reasoning and tool calls, as data for transformers' response parser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# A call that is no JSON is text of the answer; see AnswerParser.
_JSON = {"content": "json", "content_args": {"allow_non_json": True}, "repeats": True}
THOUGHT = ("<think>", "</think>")
REASONING: dict[str, Any] = {"open": THOUGHT[0], "close": THOUGHT[1], "content": "text"}
CONTENT: dict[str, Any] = {"content": "text", "content_args": {"strip": False}}
# Answers of gpt-oss, in OpenAI's harmony format: parts of channels, each with a header in front, whose
# beginning counts as the end of the part before. Text outside of all parts is text of the answer.
_PART_END = r"<\|end\|><\|start\|>assistant|<\|(?:return|call)\|>"
CHANNELS: dict[str, dict[str, Any]] = {
    "reasoning": {
        "open": "<|channel|>analysis<|message|>",
        "close_pattern": _PART_END,
        "content": "text",
        "repeats": True,
        "join": "\n",
    },
    "content": {
        "open_pattern": r"<\|channel\|>(?:final|commentary)(?:\s*<\|constrain\|>\w+)?<\|message\|>",
        "close_pattern": _PART_END,
        "repeats": True,
        "join": "\n",
        **CONTENT,
    },
    "plain": CONTENT,
}
_HARMONY = ("<|channel|>", "<|message|>")


def has_channels(template: str) -> bool:
    """Return whether the answers of a model with this chat template are parts of channels."""
    return all(part in template for part in _HARMONY)


def thinks(template: str) -> bool:
    """Return whether the answers of a model with this chat template may have reasoning."""
    return THOUGHT[1] in template or has_channels(template)


@dataclass(frozen=True)
class ToolCallFormat:
    """How a family of models writes tool calls.

    Attributes:
        name: of the form.
        parts: texts of which one or more are in the chat templates of the family, each with all its parts.
        field: the field "tool_calls" of a response template; see transformers.utils.chat_parsing.
        begin, between, end: text before the first call, between two calls and after the last.
        opening: text of one call up to its arguments, {name} for the name; closing: text after them.
        several: whether an answer may hold several calls.
    """

    name: str
    parts: tuple[str, ...]
    field: dict[str, Any]
    begin: str
    opening: str
    closing: str
    between: str = ""
    end: str = ""
    several: bool = True

    def fits(self, template: str) -> bool:
        return all(part in template for part in self.parts)


HERMES = ToolCallFormat(
    "hermes",
    ("<tool_call>",),
    {"open": "<tool_call>", "close": "</tool_call>", **_JSON},
    begin="<tool_call>\n",
    opening='{{"name": "{name}", "arguments": ',
    closing="}",
    between="\n</tool_call>\n<tool_call>\n",
    end="\n</tool_call>",
)
# In the order in which they are tried.
TOOL_CALL_FORMATS = (
    ToolCallFormat(
        "functions in tags",
        ("<tool_call>", "<function="),
        {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>",
            },
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        begin="",
        opening="",
        closing="",
    ),
    HERMES,
    ToolCallFormat(
        "names before arguments",
        ("[TOOL_CALLS]", "[ARGS]"),
        {
            "open_pattern": r"\[TOOL_CALLS\]\s*(?P<name>[^\[\s{]+)(?:\[CALL_ID\][^\[\s]*)?\[ARGS\]",
            "close_pattern": r"(?=\[TOOL_CALLS\])",
            "transform": {"name": "{name}", "arguments": "{content}"},
            **_JSON,
        },
        begin="[TOOL_CALLS]",
        opening="{name}[ARGS]",
        closing="",
        between="[TOOL_CALLS]",
    ),
    ToolCallFormat(
        "list of calls",
        ("[TOOL_CALLS]",),
        {"open": "[TOOL_CALLS]", **_JSON},
        begin="[TOOL_CALLS][",
        opening='{{"name": "{name}", "arguments": ',
        closing="}",
        between=", ",
        end="]",
    ),
    ToolCallFormat(
        "tagged list of calls",
        ("<|tool_call|>",),
        {"open": "<|tool_call|>", "close": "<|/tool_call|>", **_JSON},
        begin="<|tool_call|>[",
        opening='{{"name": "{name}", "arguments": ',
        closing="}",
        between=", ",
        end="]",
    ),
    ToolCallFormat(
        "channels",
        (*_HARMONY, "functions."),
        {
            "open_pattern": r"(?:<\|channel\|>commentary)?\s*to=functions\.(?P<name>[^\s<]+)"
            r"\s*(?:<\|channel\|>commentary)?\s*(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>",
            "close_pattern": _PART_END,
            "transform": {"name": "{name}", "arguments": "{content}"},
            **_JSON,
        },
        begin="",
        opening="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
        closing="",
        several=False,
    ),
    ToolCallFormat(
        "JSON object",
        ('{"name": ', '"parameters": '),
        {"open_pattern": r'\A\s*(?:<\|python_tag\|>)?\s*(?=\{\s*"(?:name|type)"\s*:)', **_JSON},
        begin="",
        opening='{{"name": "{name}", "parameters": ',
        closing="}",
        several=False,
    ),
)
TAGS = TOOL_CALL_FORMATS[0]


def tool_call_format(template: str) -> ToolCallFormat | None:
    """Return the form of the calls of a model with this chat template; None if it is not a known one."""
    return next((form for form in TOOL_CALL_FORMATS if form.fits(template)), None)
