"""The list of commands: the own ones, then those of plugins; the testbed is no part of the product."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest
import typer

import flowedge
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


def test_flowedge_never_imports_the_testbed() -> None:
    found = []
    for source in Path(flowedge.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            found += [
                (source, name) for name in names if name.split(".")[0] in ("flowedge_testbed", "testbed")
            ]
    assert found == []
