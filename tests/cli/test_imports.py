"""The list of commands: the own ones, then those of plugins; the testbed is no part of the product."""

from __future__ import annotations

from importlib import import_module

import pytest
import typer

from flowedge.cli.main import COMMANDS, all_commands


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_command_is_listed_with_the_first_line_of_its_own_help(name: str) -> None:
    module, _, attribute = COMMANDS[name].target.partition(":")
    command = getattr(import_module(module), attribute)
    own = command.info.help if isinstance(command, typer.Typer) else command.__doc__
    assert str(own).strip().splitlines()[0] == COMMANDS[name].help


def test_plugins_come_after_the_own_commands() -> None:
    names = list(all_commands())
    assert names[: len(COMMANDS)] == list(COMMANDS)
    assert "bench" in names
