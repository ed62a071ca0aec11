"""A system message is refused where a chat template would lose it."""

from __future__ import annotations

import pytest

from flowedge.core.errors import BadRequestError
from flowedge.text.system_message import check_takes_system

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
    check_takes_system(template, "/models/x")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("", "has no chat template"),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "leaves the message out"),
        ("{% for m in messages %}<{{ m.content }}>{% endfor %}", "takes the message for the user's"),
    ],
)
def test_templates_that_do_not(template: str, reason: str) -> None:
    with pytest.raises(BadRequestError, match=reason):
        check_takes_system(template, "/models/x")
