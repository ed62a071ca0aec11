"""Chat templates against transformers' own rendering, and templates that do not end or grow without bound."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.text.template_renderer import TemplateRenderer
from tests.support.breadth import dealt
from tests.support.seams import close_template_link, template_worker, use_template_worker

MESSAGES = [
    {"role": "system", "content": "Be <brief> & kind"},
    {"role": "user", "content": "Zwölf 🙂 hens?\n"},
    {"role": "assistant", "content": " yes "},
    {"role": "user", "content": "why"},
]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
LOOPS = "{% for a in range(10 ** 5) %}{% for b in range(10 ** 5) %}{% endfor %}{% endfor %}"
TEMPLATES = {
    "plain": "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m.content | trim }}{% endfor %}",
    "blocks": "{%- for m in messages %}\n  {%- if loop.first and m.role == 'system' %}\n[{{ m.content }}]\n"
    "  {% else %}\n    {{ m.content }}\n  {% endif %}\n{%- endfor %}\n",
    "namespace": "{% set ns = namespace(n=0, seen='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% set ns.seen = ns.seen + m.role[0] %}{% endfor %}{{ ns.n }}{{ ns.seen }}",
    "json": "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ 'ü' | tojson(ensure_ascii=true) }}",
    "loop controls": "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m }}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "macro": "{% macro turn(m) %}<|{{ m.role }}|>{{ m.content }}{% endmacro %}"
    "{% for m in messages %}{{ turn(m) }}{% endfor %}",
    "prompt": "{{ messages[-1].content }}{% if add_generation_prompt %}<bot>{% endif %}{{ tools is none }}",
    "dict": "{{ dict(a=1).a }}{{ messages[0].missing is defined }}{{ messages | length }}",
    "year": "{{ strftime_now('%Y') }}",
}


@pytest.fixture(scope="module")
def renderer() -> Iterator[TemplateRenderer]:
    renderer = TemplateRenderer()
    yield renderer
    renderer.close()


def render(renderer: TemplateRenderer, template: str) -> str:
    return renderer.render(template, "/models/x", MESSAGES, SPECIAL, add_generation_prompt=True)


def test_the_text_is_that_of_transformers(renderer: TemplateRenderer) -> None:
    for template in TEMPLATES.values():
        expected, _ = render_jinja_template(
            [MESSAGES], chat_template=template, add_generation_prompt=True, **SPECIAL
        )
        assert render(renderer, template) == expected[0]


ENDLESS = {
    "loops": LOOPS,
    "macros": "{% macro a(n) %}{% if n %}{{ a(n-1) }}{{ a(n-1) }}{% endif %}{% endmacro %}{{ a(60) }}",
}
EXPLODING = {
    "product": "{{ 'a' * 10 ** 9 }}",
    "doubling": "{% set n = namespace(s='aa') %}{% for i in range(60) %}{% set n.s = n.s * 2 %}{% endfor %}",
    "width": "{{ '%1000000000d' % 1 }}",
    "list": "{{ (range(99999) | list * 1000) | sort | length }}",
    "text": LOOPS.replace("%}{% endfor", "%}0123456789{% endfor", 1),
    "nested": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "recursion": "{% macro a(n) %}{{ a(n + 1) }}{% endmacro %}{{ a(0) }}",
    "syntax": "{% for %}",
    "long": "{# " + "x" * (1 << 20) + " #}",
}


@pytest.mark.parametrize("name", dealt(ENDLESS, {"loops"}.__contains__))
def test_a_template_without_an_end_is_ended(
    renderer: TemplateRenderer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowedge.text.template_renderer.CPU_S", 1)
    with pytest.raises(CheckpointError, match=r"template of /models/x .* more than 1 s"):
        renderer.check(ENDLESS[name], "/models/x")
    assert render(renderer, TEMPLATES["prompt"]) == "why<bot>True"


def test_a_template_that_grows_is_refused(renderer: TemplateRenderer) -> None:
    for template in EXPLODING.values():
        with pytest.raises(CheckpointError, match="template of /models/x cannot be used"):
            renderer.check(template, "/models/x")
        assert render(renderer, TEMPLATES["prompt"]) == "why<bot>True"


FORBIDDEN: list[str] = [
    "{{ raise_exception('no system role') }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{% set n = namespace(__class__=1) %}",
    "{{ messages[0].missing.more }}",
    "{{ 1 // 0 }}",
    "{{ range(10 ** 9) }}",
]


def test_what_a_template_may_not_do_is_a_refusal_of_the_messages(renderer: TemplateRenderer) -> None:
    for template in FORBIDDEN:
        with pytest.raises(BadRequestError, match="chat template refuses the messages"):
            render(renderer, template)
        renderer.check(template, "/models/x")  # other messages may be accepted


def test_a_worker_that_is_killed_is_replaced(renderer: TemplateRenderer) -> None:
    render(renderer, "x")
    process = template_worker(renderer)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert render(renderer, "{{ messages | length }}") == "4"


def test_a_worker_ends_with_its_owner() -> None:
    renderer = TemplateRenderer()
    render(renderer, "x")
    process = template_worker(renderer)
    close_template_link(renderer)  # as by the end of the process
    assert process.wait(30) == 0
    renderer.close()


def test_jinja_may_lie_where_the_worker_does_not_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a user's own packages, which an isolated process leaves out."""
    without_packages = tmp_path / "python"
    without_packages.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    without_packages.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(without_packages))
    renderer = TemplateRenderer()
    assert render(renderer, "{{ messages | length }}") == "4"
    renderer.close()


def test_a_worker_that_answers_nonsense_is_replaced(
    renderer: TemplateRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowedge.text.template_renderer._END_S", 0.1)
    ours, theirs = socket.socketpair()
    with theirs, subprocess.Popen(["sleep", "60"]) as process:
        use_template_worker(renderer, process, ours)
        theirs.sendall(b"\0\0\0\1?")
        with pytest.raises(CheckpointError, match="exit status None"):
            render(renderer, "x")
        assert process.poll() is not None
    assert render(renderer, "{{ messages | length }}") == "4"


def test_a_fork_has_a_worker_of_its_own(renderer: TemplateRenderer) -> None:
    """The tests of agents fork processes, and a service may."""
    assert render(renderer, "x") == "x"
    child = os.fork()
    if child == 0:
        text = render(renderer, "{{ messages | length }}")
        renderer.close()
        os._exit(0 if text == "4" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert render(renderer, "y") == "y"


def test_the_worker_is_warm(renderer: TemplateRenderer) -> None:
    render(renderer, "x")
    process = template_worker(renderer)
    for _ in range(50):
        render(renderer, TEMPLATES["plain"])
    assert template_worker(renderer) is process and process.poll() is None


def test_concurrent_renderings(renderer: TemplateRenderer) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda number: render(renderer, f"{number}"), range(64)))
    assert texts == [str(number) for number in range(64)]
