"""A system message is folded into the user's where a chat template would lose it."""

from __future__ import annotations

import pytest

from flowedge.text.system_message import folded_system, takes_system

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
IN_FIRST = (
    "{% if messages[0].role == 'system' %}{% set start = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set start = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('alternate') }}{% endif %}"
    "[{{ start if loop.first else '' }}{{ m.content | trim }}]{% endfor %}"
)


@pytest.mark.parametrize("template", [CHATML, IN_FIRST])
def test_templates_that_take_one(template: str) -> None:
    assert takes_system(template, "/models/x")


@pytest.mark.parametrize(
    "template",
    [
        "",
        "{{ raise_exception('no system role') }}",
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}<{{ m.content }}>{% endfor %}",
    ],
)
def test_templates_that_do_not(template: str) -> None:
    assert not takes_system(template, "/models/x")


def messages(*spoken: str) -> list[dict[str, str]]:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": roles[each[0]], "content": each} for each in spoken]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["s1", "u1"], [("user", "s1\n\nu1")]),
        (["s1", "s2", "u1", "a1", "u2"], [("user", "s1\n\ns2\n\nu1"), ("assistant", "a1"), ("user", "u2")]),
        (["u1", "a1", "s1", "u2"], [("user", "u1"), ("assistant", "a1"), ("user", "s1\n\nu2")]),
        (["s1"], [("user", "s1")]),
        (["u1", "s1"], [("user", "u1\n\ns1")]),
        (["u1", "a1", "s1"], [("user", "u1"), ("assistant", "a1"), ("user", "s1")]),
    ],
)
def test_where_system_messages_go(before: list[str], after: list[tuple[str, str]]) -> None:
    assert [(each["role"], each["content"]) for each in folded_system(messages(*before))] == after
