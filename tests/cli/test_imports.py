"""The imports of commands: --help is quick, and a client needs no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

import flowedge
from flowedge.cli.main import COMMANDS, all_commands

HEAVY = ("torch", "transformers", "bitsandbytes")


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_command_is_listed_with_the_first_line_of_its_own_help(name: str) -> None:
    module, _, attribute = COMMANDS[name].target.partition(":")
    command = getattr(import_module(module), attribute)
    own = command.info.help if isinstance(command, typer.Typer) else command.__doc__
    assert str(own).strip().splitlines()[0] == COMMANDS[name].help


def test_no_command_imports_torch_before_it_runs() -> None:
    modules = sorted({entry.target.partition(":")[0] for entry in COMMANDS.values()})
    code = (
        "import sys; from importlib import import_module\n"
        f"for module in {modules}:\n"
        "    import_module(module)\n"
        f"    print(module, *[name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == modules


def test_help_of_all_commands_imports_no_command() -> None:
    code = (
        "import sys; from flowedge.cli.main import run; run(['--help']); "
        "print([name for name in sys.modules if name.startswith('flowedge.cli.commands.')], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.strip() == "[]"
    assert all(name in done.stdout for name in COMMANDS)


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
