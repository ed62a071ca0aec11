"""Tools for chat templates that know them, and as text for others."""

from __future__ import annotations

from typing import Any

import pytest

from flowedge.text.template_renderer import RENDERER
from flowedge.text.template_tools import capabilities_of, described_tools, knows_tools

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Bonn"}}}
KNOWS = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    "({{ c.function.arguments.city }}){% endfor %}{% endfor %}{{ 'thinks' if enable_thinking else '' }}"
)
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Rain?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "dry", "tool_call_id": "1"},
    {"role": "tool", "content": "wet", "tool_call_id": "2"},
    {"role": "user", "content": "Which?"},
]


def test_a_template_that_knows_tools_gets_them_as_objects() -> None:
    assert knows_tools(KNOWS, "/models/x")
    values = {"enable_thinking": True}
    text = RENDERER.render(KNOWS, "/models/x", TALK, values, add_generation_prompt=True, tools=[TOOL])
    assert text.startswith('{"type": "function"') and "(Bonn)(Bonn)[tool]dry" in text
    assert text.endswith("[user]Which?thinks")


def test_a_template_that_does_not_gets_text() -> None:
    assert not knows_tools(PLAIN, "/models/x") and not knows_tools("", "")
    assert not knows_tools("{{ raise_exception('no') if tools }}", "/models/x")
    messages = described_tools(TALK, [TOOL])
    assert [each["role"] for each in messages] == ["system", "user", "assistant", "user", "user"]
    assert messages[1]["content"].startswith("# Tools\n") and messages[1]["content"].endswith("\n\nRain?")
    assert '{"type": "function", "function": {"name": "weather"' in messages[1]["content"]
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
    assert messages[2]["content"] == f"{call}\n{call}"
    assert (
        messages[3]["content"]
        == "<tool_response>\ndry\n</tool_response>\n<tool_response>\nwet\n</tool_response>"
    )
    assert messages[4]["content"] == "Which?"


def test_a_longer_conversation_begins_with_the_shorter_one() -> None:
    shorter = described_tools(TALK[:2], [TOOL])
    assert described_tools(TALK, [TOOL])[:2] == shorter


class Tokenizer:
    """What is read of a tokenizer of transformers."""

    def __init__(self, chat_template: str | None) -> None:
        self.chat_template, self.name_or_path = chat_template, "/models/x"


@pytest.mark.parametrize(
    ("template", "capabilities"),
    [
        (None, ()),
        ("{{ messages[0].content }}", ()),
        ("{{ tools | tojson }}{{ messages[0].content }}<tool_call>", ("tools",)),
        ("{{ tools | tojson }}{{ messages[0].content }}", ()),  # in which form calls come is not known
        ("{{ tools | tojson }}<tool_call></think>", ("tools", "thinking")),
        ("{{ messages[0].content }}<think></think>", ("thinking",)),
    ],
)
def test_what_a_model_is_made_for(template: str | None, capabilities: tuple[str, ...]) -> None:
    assert capabilities_of(Tokenizer(template)) == capabilities
