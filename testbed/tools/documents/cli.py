"""Writes docs/cli.md from the declarations of the commands.

python -m testbed.tools.documents.cli          # at the root of a checkout
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from flowedge.cli.help_page import Entry, parameter_entries
from flowedge.cli.main import COMMANDS, app

DOCUMENT = Path("docs") / "cli.md"
GROUPS = {
    "Ask": ("generate", "chat"),
    "Serve over HTTP": ("serve",),
    "Devices and clusters": ("agent", "devices", "doctor", "use", "upgrade", "release", "cluster", "join"),
    "Models and drafters": ("inspect", "plan", "models", "count-tokens", "train-drafter"),
    "Try and measure": ("demo", "profile"),
}
_HEADER = """\
# The command line

Made by `python -m testbed.tools.documents.cli` from the declarations of the commands; edit those.
Commands are on PATH after `source .venv/bin/activate`, and on a board after `install.sh`.
`flowedge COMMAND --help` shows the same on a terminal.

Exit codes: 0 success; 1 failure; 2 wrong usage; 3 `--check` found a difference that rounding does not
explain; 130 ended by Ctrl-C. `flowedge bench` is a command of the
[testbed](../testbed/docs/benchmarks.md).
"""
_SHARED = "Options of several kinds of commands"


class Command(NamedTuple):
    """A command as the document shows it.

    Attributes:
        name: without "flowedge", such as "serve keys add".
        usage: the command with its arguments.
        summary: the first paragraph of its help.
    """

    name: str
    usage: str
    summary: str
    options: list[Entry]


def cli_document() -> str:
    """Return the text of docs/cli.md.

    Raises:
        ValueError: when GROUPS lacks a command of COMMANDS.
    """
    missing = set(COMMANDS) - {name for names in GROUPS.values() for name in names}
    if missing:
        raise ValueError(f"name these commands in GROUPS of {__name__}: {', '.join(sorted(missing))}")
    groups = {title: [one for name in names for one in _commands(name)] for title, names in GROUPS.items()}
    users: dict[Entry, list[tuple[str, str]]] = {}
    for title, commands in groups.items():
        for command in commands:
            for option in command.options:
                users.setdefault(option, []).append((title, command.name))
    shared = {option for option, uses in users.items() if len({title for title, _ in uses}) > 1}
    blocks = [_HEADER]
    for title, commands in groups.items():
        lines = [f"- `flowedge {command.usage}`: {command.summary}" for command in commands]
        blocks += [f"## {title}\n", "\n".join(lines) + "\n"]
        listed = dict.fromkeys(option for command in commands for option in command.options)
        blocks.append(_table({option: users[option] for option in listed if option not in shared}))
    blocks += [f"## {_SHARED}\n", _table({option: users[option] for option in users if option in shared})]
    return "\n".join(blocks)


def _commands(name: str) -> Iterator[Command]:
    """Yield a command of `flowedge` and, if it is a group, the commands in it."""
    group: Any = typer.main.get_command(app)
    _, command, _ = group.resolve_command(typer.Context(group, info_name="flowedge"), [name])
    yield from _walk(command, name)


def _walk(command: Any, name: str) -> Iterator[Command]:
    context = typer.Context(command, info_name=name)
    options, arguments = parameter_entries(command, context)
    is_group = isinstance(command, typer.core.TyperGroup)
    if not is_group or command.invoke_without_command:
        summary = (command.help or "").split("\n\n")[0].replace("\n", " ")
        usage = " ".join([name, *(argument.term for argument in arguments)])
        yield Command(
            name, usage, summary, [option for option in options if not option.term.startswith("--help")]
        )
    if is_group:
        for inner in command.list_commands(context):
            yield from _walk(command.get_command(context, inner), f"{name} {inner}")


def _table(users: dict[Entry, list[tuple[str, str]]]) -> str:
    rows = ["| Option | Of | Meaning |", "|---|---|---|"]
    for option, uses in users.items():
        names = ", ".join(name for _, name in uses)
        rows.append(f"| `{_cell(option.term)}` | {names} | {_cell(option.description)} |")
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    DOCUMENT.write_text(cli_document(), encoding="utf-8")
