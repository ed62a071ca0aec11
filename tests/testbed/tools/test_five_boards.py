"""The proof reads its commands from docs/five-boards.md as a person would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from flowedge.agent.config_rendering import AGENT_DOCUMENTS
from flowedge.cli.main import app
from flowedge.core.errors import BadRequestError
from testbed.tools.nspawn.guide.document import GATEWAY, Document, with_settings

CHECKOUT = Path(__file__).parents[3]
DOCUMENT = Document.read(CHECKOUT)


def test_commands_are_read_without_comments() -> None:
    assert DOCUMENT.commands("Join the boards") == [
        "sudo flowedge cluster token --role draft-node",
        "sudo flowedge cluster token",
    ]
    assert DOCUMENT.commands("Join yourself", 1) == ["flowedge join"]
    with pytest.raises(BadRequestError, match="has 1 blocks of commands"):
        DOCUMENT.commands("Look", 1)
    with pytest.raises(BadRequestError, match="no section 'Lunch'"):
        DOCUMENT.commands("Lunch")


def test_no_command_needs_a_variable() -> None:
    assert not [
        text for text in DOCUMENT.sections.values() if "FLOWEDGE_STATE_DIR" in text or "export" in text
    ]


def test_settings_are_written_where_a_person_writes_them() -> None:
    settings = DOCUMENT.settings("A real model")
    assert settings["weights"] == {"hub": "true"}
    changed = with_settings(AGENT_DOCUMENTS.example_toml(), settings)
    assert 'model = "HuggingFaceTB/SmolLM2-135M-Instruct"' in changed.partition("[pipeline]")[2].splitlines()
    before, after = set(AGENT_DOCUMENTS.example_toml().splitlines()), set(changed.splitlines())
    assert after - before == {f"{key} = {value}" for part in settings.values() for key, value in part.items()}
    assert with_settings(changed, settings) == changed
    with pytest.raises(BadRequestError, match=r"no setting pipeline\.colour"):
        with_settings(changed, {"pipeline": {"colour": '"red"'}})


def commands_of(document: Document) -> Iterator[str]:
    for heading in document.sections:
        for block in count():
            try:
                yield from document.commands(heading, block)
            except BadRequestError:
                break


def parse(words: list[str]) -> None:
    """Parse a command and its options, without running it."""
    name, command, context = "flowedge", cast(Any, typer.main.get_command(app)), None
    while hasattr(command, "resolve_command") and words[:1] and not words[0].startswith("-"):
        context = command.make_context(name, list(words), parent=context)
        name, command, words = command.resolve_command(context, words)
    command.make_context(name, words, parent=context)


@pytest.mark.parametrize("document", [DOCUMENT, Document.read(CHECKOUT, GATEWAY)], ids=lambda d: d.file.stem)
def test_commands_and_their_options_exist(document: Document) -> None:
    """The proof gives the commands; this test sees with every change whether they can be given."""
    commands = list(commands_of(document))
    flowedge = [found[1] for line in commands if (found := re.search(r"\bflowedge ([a-z].*)", line))]
    assert len(flowedge) >= 10
    for line in flowedge:
        parse(shlex.split(line))


def test_options_of_scripts_exist() -> None:
    calls = [
        found for line in commands_of(DOCUMENT) for found in re.findall(r"(device_agents/\S+)(.*)", line)
    ]
    assert len(calls) >= 6
    for script, given in calls:
        text = (CHECKOUT / script).read_text(encoding="utf-8")
        assert all(f" {option}) " in text for option in re.findall("--[a-z]+", given)), (script, given)
