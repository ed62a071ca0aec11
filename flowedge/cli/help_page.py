"""The help of a command: nothing is cut at any width, and only options that take a value show one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import typer
import typer.core

from flowedge.cli.output import say_text, wrap_words

_WIDEST = 100  # columns of a terminal; longer lines are hard to read
_STACKED_BELOW = 72  # columns of a terminal below which a description goes under its term
_LONGEST_TERM = 30  # columns of a term beside its description
_LONGEST_CHOICES = 36  # columns up to which choices are shown as the option's value
_VALUES = {  # what a value is called, by the name of its type
    "str": "TEXT",
    "text": "TEXT",
    "int": "N",
    "integer": "N",
    "int range": "N",
    "integer range": "N",
    "float": "NUMBER",
    "float range": "NUMBER",
    "path": "PATH",
}


class Entry(NamedTuple):
    """A term and its description: an option, an argument or a command."""

    term: str
    description: str


class HelpCommand(typer.core.TyperCommand):
    """A command whose help is this module's."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_page(self, ctx, terminal_width()))


class HelpGroup(typer.core.TyperGroup):
    """A group of commands whose help is this module's; it is shown as well where a command is missing."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_page(self, ctx, terminal_width()))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            say_text(f"{ctx.get_help()}\n")
            raise typer.Exit
        return list(super().parse_args(ctx, args))


def use_help_pages(app: typer.Typer) -> None:
    """Have an application and its commands show the help pages of this module."""
    app.info.cls = HelpGroup
    for command in app.registered_commands:
        command.cls = HelpCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            use_help_pages(group.typer_instance)


def terminal_width() -> int:
    """Return the columns of the terminal, or of COLUMNS; 80 where neither is known."""
    return shutil.get_terminal_size((80, 24)).columns


def help_page(command: Any, context: Any, width: int) -> str:
    """Return the help of a command, in lines of `width` columns."""
    width = min(width, _WIDEST)
    options, arguments = parameter_entries(command, context)
    pieces = [context.command_path, "[OPTIONS]", *(argument.term for argument in arguments)]
    commands: list[Entry] = []
    if isinstance(command, typer.core.TyperGroup):
        pieces += ["COMMAND", "..."]
        commands = list(_commands(command, context))
    blocks = [wrap_words(" ".join(pieces), width, "    ", first="Usage:")]
    blocks += [wrap_words(paragraph, width) for paragraph in (command.help or "").split("\n\n")]
    blocks += _section("Arguments", arguments, width)
    blocks += _section("Options", options, width)
    blocks += _section("Commands", commands, width)
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"


def parameter_entries(command: Any, context: Any) -> tuple[list[Entry], list[Entry]]:
    """Return the options of a command and its arguments, each with its value and its description."""
    options, arguments = [], []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        if parameter.param_type_name == "argument":
            arguments.append(Entry(_argument(parameter), _readable(record[1]).removesuffix(" [required]")))
        else:
            options.append(_option(*record))
    return options, arguments


def entries(items: Sequence[Entry], width: int, longest: int = _LONGEST_TERM) -> list[str]:
    """Return terms with their descriptions beside them or, in a narrow terminal, below them.

    longest: columns of a terminal that a term beside its description may take.
    """
    stacked = width < _STACKED_BELOW
    beside = [len(item.term) for item in items if len(item.term) <= longest]
    column = 6 if stacked else 4 + max(beside, default=0)
    lines = []
    for item in items:
        if stacked or len(item.term) > longest:
            lines += wrap_words(item.term, width, "      ", first="  ")
            lines += wrap_words(item.description, width, " " * column) if item.description else []
        else:
            begin = f"  {item.term}".ljust(column)
            described = wrap_words(item.description, width, " " * column)
            lines += [begin + described[0][column:], *described[1:]]
    return [line.rstrip() for line in lines]


def _section(title: str, items: Sequence[Entry], width: int) -> list[list[str]]:
    return [[f"{title}:", *entries(items, width)]] if items else []


def _commands(group: typer.core.TyperGroup, context: Any) -> Iterable[Entry]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            yield Entry(name, (command.help or "").split("\n\n")[0])


def _argument(parameter: Any) -> str:
    if parameter.metavar is not None:
        return str(parameter.metavar)
    name = str(parameter.name).upper()
    return name if parameter.required else f"[{name}]"


def _option(term: str, description: str) -> Entry:
    """Return an option as the help page shows it.

    term: as Typer writes it: "--port <int range>", "--kv <native|int8>", "--quiet, -q", "--hub / --no-hub".
    """
    words = term.split(" ")
    count = sum(1 for _ in takewhile(lambda word: word.startswith("-") or word == "/", words))
    flags, value = " ".join(words[:count]), " ".join(words[count:])
    value = re.sub(r"[<>\[\]]", "", re.sub(r"^<list\[(.*)\]>$", r"\1", value)) if _is_type(value) else value
    value = _VALUES.get(value.lower(), value)
    if "|" in value and len(flags) + 1 + len(value) > _LONGEST_CHOICES:
        choices = ", ".join(value.split("|"))
        value = flags.rpartition("--")[2].upper()
        end = re.search(r"  \[[^\[]*\]$", description)
        at = len(description) if end is None else end.start()
        description = f"{description[:at]} Choices: {choices}.{description[at:]}"
    return Entry(f"{flags} {value}".strip(), _readable(description))


def _is_type(value: str) -> bool:
    """Whether a value was named by Typer for its type; it is a name that the option gives otherwise."""
    return value.startswith("<") or value.lower() in _VALUES or (value.startswith("[") and "|" in value)


def _readable(description: str) -> str:
    """Return a description in which bounds and default are in words: [default: 2; 1 to 9]."""
    begin = description.rfind("  [")
    text, notes = (description, "") if begin < 0 else (description[:begin], description[begin:].strip())
    if description.startswith("[") and begin < 0:
        text, notes = "", description
    for pattern, words in (
        (r"([-\d.]+)<=x<=([-\d.]+)", r"\1 to \2"),
        (r"x>=([-\d.]+)", r"\1 or more"),
        (r"x<=([-\d.]+)", r"at most \1"),
        (r"default: (\d+)\.0(?![.\d])", r"default: \1"),
    ):
        notes = re.sub(pattern, words, notes)
    return f"{text} {notes}".strip()
