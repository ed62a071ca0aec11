"""The proof reads its commands from docs/five-boards.md as a person would."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowedge.agent.config.rendering import AGENT_DOCUMENTS
from flowedge.core.errors import BadRequestError
from testbed.tools.nspawn.guide.document import Document, with_settings

DOCUMENT = Document.read(Path(__file__).parents[3])


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
