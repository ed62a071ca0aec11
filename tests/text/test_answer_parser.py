"""Answers in the forms of the families, separated piece by piece."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowedge.core.errors import CheckpointError
from flowedge.text.answer_parser import AnswerParser
from flowedge.text.answer_syntax import AnswerSyntax, answer_syntax, opens_thought
from flowedge.text.known_syntaxes import HERMES, TOOL_CALL_FORMATS, tool_call_format
from flowedge.text.template_renderer import RENDERER

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]
BONN, NOW = ("weather", {"city": "Bonn", "days": 3}), ("now", {})
# Two calls as each family writes them, by a chat template in the family's form.
CALLS = [
    {"type": "function", "id": "abcdefgh1", "function": {"name": n, "arguments": a}} for n, a in (BONN, NOW)
]
TEMPLATES = {
    "functions in tags": (
        "{% for c in messages[-1].tool_calls %}<tool_call>\n<function={{ c.function.name }}>\n"
        "{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n"
        "{% endfor %}"
        "</function>\n</tool_call>{{ '' if loop.last else '\n' }}{% endfor %}"
    ),
    "hermes": (
        '{% for c in messages[-1].tool_calls %}<tool_call>\n{"name": "{{ c.function.name }}", '
        '"arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
        '{{ "" if loop.last else "\n" }}{% endfor %}'
    ),
    "names before arguments": (
        "{% for c in messages[-1].tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]"
        "{{ c.function.arguments | tojson }}{% endfor %}"
    ),
    "list of calls": (
        '[TOOL_CALLS][{% for c in messages[-1].tool_calls %}{"name": "{{ c.function.name }}", "arguments": '
        '{{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}{{ "" if loop.last else ", " }}{% endfor %}]'
    ),
    "tagged list of calls": (
        '<|tool_call|>[{% for c in messages[-1].tool_calls %}{"name": "{{ c.function.name }}", "arguments": '
        '{{ c.function.arguments | tojson }}}{{ "" if loop.last else ", " }}{% endfor %}]<|/tool_call|>'
    ),
    "channels": (
        "{% set c = messages[-1].tool_calls[0].function %}<|channel|>commentary to=functions.{{ c.name }} "
        "<|constrain|>json<|message|>{{ c.arguments | tojson }}"
    ),
    "JSON object": (
        '{% set c = messages[-1].tool_calls[0].function %}{"name": {{ c.name | tojson }}, '
        '"parameters": {{ c.arguments | tojson }}}'
    ),
}


def rendered(name: str) -> str:
    message = {"role": "assistant", "content": "", "tool_calls": CALLS}
    return RENDERER.render(TEMPLATES[name], "/models/x", [message], {}, add_generation_prompt=False)


def read(
    form: AnswerSyntax | None, answer: str, step: int, prompt: str = "", **options: Any
) -> tuple[Any, ...]:
    """Return text, reasoning and calls of an answer that comes in pieces."""
    assert form is not None
    parser = AnswerParser(form, prompt, TOOLS, **options)
    parts = [parser.feed(answer[at : at + step]) for at in range(0, len(answer), step)]
    parts.append(parser.finish())
    calls = [call for part in parts for call in part.calls]
    assert parser.calls == len(calls) == len({call.id for call in calls})
    texts = "".join(part.text for part in parts), "".join(part.reasoning for part in parts)
    return (*texts, [(call.name, json.loads(call.arguments)) for call in calls])


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_are_read_in_the_form_of_each_family(name: str) -> None:
    for step in (1, 5, 1000):
        template = TEMPLATES[name] + "</think>"
        calls = tool_call_format(template)
        assert calls is not None and calls.name == name
        form, answer = answer_syntax(template, None, calls, "x"), rendered(name)
        expected = [BONN, NOW] if calls.several else [BONN]
        assert read(form, answer, step) == ("", "", expected)
        assert read(form, answer, step, single=True) == ("", "", [BONN])
        if calls.several:  # the others begin with the call
            thought = f"<think>\nI ask.\n</think>\n\n{answer}"
            assert read(form, thought, step) == ("", "I ask.", expected)
            assert read(form, f"I ask.\n{answer}", step) == ("I ask.", "", expected)


def test_each_form_is_tested() -> None:
    assert [form.name for form in TOOL_CALL_FORMATS] == list(TEMPLATES)


def test_a_thought_may_begin_in_the_prompt() -> None:
    for step in (1, 4, 1000):
        form = answer_syntax("</think>", None, None, "x")
        asked = "<think>old</think>Hi<assistant><think>\n"
        assert opens_thought(asked)
        assert read(form, "So.\n</think>\n\nYes. \n", step, asked) == ("Yes. \n", "So.", [])
        assert read(form, "So.\n", step, asked) == ("", "So.", [])
        assert read(form, "No thought.\n\n", step, "<think>\n\n</think>\n\n") == ("No thought.\n\n", "", [])
        assert read(form, '<tool_call>{"name": "now"}</tool_call>', step)[2] == []


CHANNELS = "<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>final<|message|>"


def test_parts_of_channels() -> None:
    """The answers of gpt-oss."""
    ask, final = "<|channel|>analysis<|message|>I ask.", "<|channel|>final<|message|>"
    call = "to=functions.weather <|constrain|>json<|message|>" + json.dumps(BONN[1])
    turn, called = "<|end|><|start|>assistant", [BONN]
    for step in (1, 4, 1000):
        form = answer_syntax(CHANNELS + "functions.", None, tool_call_format(CHANNELS + "functions."), "x")
        assert read(form, f"{ask}{turn}{final}Yes. \n", step) == ("Yes. \n", "I ask.", [])
        assert read(form, f"{final}Yes", step) == ("Yes", "", [])
        assert read(form, "Plain", step) == ("Plain", "", [])
        assert read(form, f"{ask}{turn}<|channel|>commentary {call}<|call|>", step) == ("", "I ask.", called)
        assert read(
            form, f"{ask}{turn} {call}".replace("weather ", "weather<|channel|>commentary "), step
        ) == (
            "",
            "I ask.",
            called,
        )
        told = f"{ask}{turn}<|channel|>commentary<|message|>First:{turn}<|channel|>commentary {call}"
        assert read(form, told, step) == ("First:", "I ask.", called)
        thinks = answer_syntax(CHANNELS, None, None, "x")
        assert read(thinks, f"{ask}{turn}{final}Yes", step) == ("Yes", "I ask.", [])
        assert read(thinks, ask, step) == ("", "I ask.", [])


def test_a_call_that_is_malformed_is_text() -> None:
    for step in (1, 4, 1000):
        form = answer_syntax("", None, HERMES, "x")
        for body in (
            '{"name": "now", "argu',
            '{"arguments": {}}',
            "[1, 2]",
            '{"name": "now", "arguments": "x"}',
        ):
            answer = f"<tool_call>{body}</tool_call>"
            for text in (answer, f"Well: {answer}\n", f"{answer}\n\n{answer}", f"{answer}<tool_c"):
                assert read(form, text, step) == (text, "", [])
                assert read(form, text, step, single=True) == (text, "", [])
        assert read(form, '<tool_call>{"na', step) == ('<tool_call>{"na', "", [])
        assert read(form, '<tool_call>{"name": "now"}</tool_call>\n<tool_call>[]', step) == (
            "<tool_call>[]",
            "",
            [NOW],
        )


@pytest.mark.parametrize("form", TOOL_CALL_FORMATS[2:5], ids=lambda form: form.name)
def test_the_markers_of_a_malformed_call_are_text(form: Any) -> None:
    for step in (1, 4, 1000):
        answer = f"Well: {form.begin}{form.opening.format(name='now')}{{broken{form.end}"
        assert read(answer_syntax("", None, form, "x"), answer, step) == (answer, "", [])


@pytest.mark.parametrize("form", TOOL_CALL_FORMATS, ids=lambda form: form.name)
def test_nothing_of_a_call_that_is_cut_off_is_text(form: Any) -> None:
    syntax, whole = answer_syntax("", None, form, "x"), rendered(form.name)
    for length in range(2, len(whole)):
        parser = AnswerParser(syntax, "", TOOLS)  # type: ignore[arg-type]
        parts = [parser.feed(whole[:length]), parser.finish(cut=True)]
        assert "".join(part.text for part in parts) == "", whole[:length]
        for call in (call for part in parts for call in part.calls):
            assert (call.name, json.loads(call.arguments)) in (BONN, NOW)
    parser = AnswerParser(syntax, "", TOOLS)  # type: ignore[arg-type]
    other = '{"name": "Bo", "age": 3'
    assert parser.feed(other).text + parser.finish(cut=True).text == other


def test_a_marker_in_an_argument_is_text_of_the_argument() -> None:
    arguments = {"city": 'say "</tool_call>" }</tool_call> or <tool_call>' + chr(92)}
    call = json.dumps({"name": "weather", "arguments": arguments})
    answer = f"Well: <tool_call>{call}</tool_call>"
    for step in (1, 4, 1000):
        form = answer_syntax("", None, HERMES, "x")
        expected = ("weather", arguments)
        again = '\n<tool_call>{"name": "now"}</tool_call>'
        assert read(form, answer + again, step) == ("Well:", "", [expected, NOW])


def test_a_field_that_the_tokenizers_form_requires_and_the_answer_lacks_costs_no_text() -> None:
    for step in (1, 4, 1000):
        own = {
            "start_anchor": "<a>",
            "fields": {"thinking": {"open": "(", "close": ")", "optional": False}, "content": {}},
        }
        assert read(answer_syntax("", own, None, "x"), "Yes or no", step, "<a>") == ("Yes or no", "", [])


def test_a_tokenizer_may_bring_its_own_form() -> None:
    own = {
        "start_anchor": "<assistant>",
        "fields": {
            "thinking": {"open": "(", "close": ")"},
            "tool_calls": {
                "open_pattern": r"!(?P<name>\w+) ",
                "close": ";",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
            "content": {},
        },
    }
    form = answer_syntax("", own, None, "x")
    prompt = "<assistant>(old)<user>Hi<assistant>("
    assert read(form, 'hm) Yes !weather {"city": "Bonn"};', 3, prompt) == (
        "Yes",
        "hm",
        [("weather", {"city": "Bonn"})],
    )
    assert read(form, "Yes !weather no JSON;!now {};", 3, "<assistant>")[2] == []  # and no error
    assert form is not None and form.markers(["!", "(", "<unk>"]) == ["!", "("]


@pytest.mark.parametrize("own", [["x"], {"fields": {}}, {"fields": {"content": {"open_pattern": "("}}}])
def test_a_form_of_its_own_that_is_malformed_is_refused(own: Any) -> None:
    with pytest.raises(CheckpointError, match="the response template of /models/x cannot be used"):
        answer_syntax("", own, None, "/models/x")


def test_a_pattern_that_takes_for_ever_is_given_up() -> None:
    own = {
        "start_anchor": "<a>",
        "fields": {"thinking": {"open_pattern": r"(x+x+)+y", "close": ")"}, "content": {}},
    }
    form = answer_syntax("", own, None, "/models/y")
    answer = "x" * 60
    assert read(form, answer, 100, "<a>") == (answer, "", [])


@pytest.mark.parametrize("form", TOOL_CALL_FORMATS[1:], ids=lambda form: form.name)
def test_json_that_is_nested_too_deeply_is_text(form: Any) -> None:
    for nested in ("[" * 6000, '{"a":' * 6000, "[" * 6000 + "]" * 6000):
        answer = form.begin + form.opening.format(name="weather") + nested + form.closing + form.end
        assert read(answer_syntax("", None, form, "x"), f"Well: {answer}", 500) == (f"Well: {answer}", "", [])
