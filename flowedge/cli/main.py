"""The `flowedge` command; the module of a subcommand is imported when the subcommand is run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import typer
import typer.core

from flowedge.cli.help_page import (
    Entry,
    HelpCommand,
    HelpGroup,
    entries,
    terminal_width,
    use_help_pages,
)
from flowedge.cli.output import complain, log_to_stderr, say, say_text, wrap_words
from flowedge.core.errors import BadRequestError, CapacityError, FlowEdgeError
from flowedge.version import VERSION

EXIT_FAILURE = 1  # something failed
EXIT_USAGE = 2  # the options or the request cannot be served as given
EXIT_INTERRUPTED = 130
PLUGINS = "flowedge.commands"  # group of entry points by which other distributions add commands

# The base class of typer's usage errors; newer versions no longer export it by name.
_ClickException: type[Any] = typer.BadParameter.__mro__[2]


class CommandEntry(NamedTuple):
    """A command.

    Attributes:
        target: "module:attribute" of a function or a Typer.
        help: its line in `flowedge --help`.
    """

    target: str
    help: str


_HELP = {
    "generate": "Answer prompts; the text streams as it is generated.",
    "chat": "Chat with a model; agents are started here if the network has none.",
    "serve": "Serve a pipeline over HTTP: OpenAI's API, and a page for browsers.",
    "devices": "List the agents on the network, their resources and their roles.",
    "doctor": "Find what keeps devices from working together: network, clocks, versions, libraries, memory.",
    "agent": "Run the agent of this device, which serves a part of a pipeline when asked to.",
    "use": "Have the devices of the network run another model, and wait until they do.",
    "upgrade": "Start the agents of the network again with another version, one by one, while requests run.",
    "release": "Release the pipelines of devices, and free their memory; running requests fail.",
    "cluster": "Make a cluster and manage its members.",
    "join": "Make this device, or its user, a member of a cluster. The key is created here and never "
    "leaves it.",
    "inspect": (
        "Show a model's layers and sizes and, with --memory, how many devices it needs; reads headers only."
    ),
    "plan": "Plan a model over boards: which take part, their layers, and the tokens a second to expect.",
    "models": "List, fetch, delete and verify cached weights.",
    "demo": "Show a pipeline on this machine: agents that find each other, answers, and their check.",
    "profile": "Measure devices and the links between them; write profiles and a scenario that runs on them.",
    "count-tokens": "Count the tokens of answers, by which drafters choose what to propose.",
    "train-drafter": "Train a draft head for a target; the same command continues after an interruption.",
}
_FIRST_COMMANDS = (
    Entry("flowedge demo", "See a pipeline on this machine."),
    Entry("flowedge chat --model bundled", "Talk to the small model that comes along."),
    Entry("flowedge agent", "Serve on this device; run it on each."),
)
_MODULES = {
    "use": "release",
    "upgrade": "devices",
    "plan": "inspect",
}  # of commands whose module has another name
_LONGEST_COMMAND = 44  # columns, of _FIRST_COMMANDS
COMMANDS = {
    name: CommandEntry(f"flowedge.cli.commands.{_MODULES.get(name, attribute)}:{attribute}", line)
    for name, line in _HELP.items()
    for attribute in [name.replace("-", "_")]
}


@cache
def all_commands() -> dict[str, CommandEntry]:
    """Return the commands of this distribution, then the commands that installed plugins add."""
    from importlib.metadata import entry_points  # noqa: PLC0415 (it reads about each installed distribution)

    plugins = {
        point.name: CommandEntry(point.value, "" if point.dist is None else point.dist.metadata["Summary"])
        for point in entry_points(group=PLUGINS)
    }
    return COMMANDS | {name: entry for name, entry in plugins.items() if name not in COMMANDS}


class CommandGroup(HelpGroup):
    """A group that imports a command's module only when the command is run.

    `--help` prints the lines of COMMANDS and imports no command.
    """

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(all_commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 (click's signature)
        entry = _entry(cmd_name)
        return None if entry is None else HelpCommand(cmd_name, help=entry.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not args[0].startswith("-") and _entry(args[0]) is None:
            close = get_close_matches(args[0], all_commands(), n=1)
            ctx.fail(f"there is no command {args[0]!r}{f'; did you mean {close[0]}?' if close else ''}")
        name, stub, rest = super().resolve_command(ctx, args)
        return name, stub if name is None else _load(name), rest


def _entry(name: str) -> CommandEntry | None:
    """Return the command of a name; only a name that is not of this distribution is looked for in others."""
    return COMMANDS.get(name) or all_commands().get(name)


def _load(name: str) -> Any:
    entry = _entry(name)
    assert entry is not None
    module, _, attribute = entry.target.partition(":")
    command = getattr(import_module(module), attribute)
    if not isinstance(command, typer.Typer):
        single = typer.Typer(add_completion=False)
        single.command(name)(command)
        command = single
    use_help_pages(command)
    return typer.main.get_command(command)


app = typer.Typer(
    name="flowedge",
    cls=CommandGroup,
    help="One large language model across several small devices.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def flowedge(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    """One large language model across several small devices."""
    if version:
        say(f"flowedge {VERSION}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        say_text(overview(terminal_width()))


def overview(width: int) -> str:
    """Return what a person sees who types `flowedge` alone: what it is, and the commands to begin with."""
    lines = wrap_words("FlowEdge runs one language model on several small devices.", width)
    lines += ["", "To begin with:", *entries(_FIRST_COMMANDS, width, _LONGEST_COMMAND), ""]
    lines += wrap_words("More: flowedge --help, and flowedge COMMAND --help.", width)
    return "\n".join([*lines, ""])


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; an error is printed as one line on stderr."""
    command = typer.main.get_command(app)
    try:
        code = command.main(args=arguments, prog_name="flowedge", standalone_mode=False)
    except _ClickException as error:
        _complain(_usage_message(error))
        return EXIT_USAGE
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except FlowEdgeError as error:
        _complain(str(error))
        usage = isinstance(error, BadRequestError) and not isinstance(error, CapacityError)
        return EXIT_USAGE if usage else EXIT_FAILURE
    except OSError as error:  # of the machine: a file that may not be read, a full disk
        if os.environ.get("FLOWEDGE_DEBUG"):
            raise
        _complain(_system_message(error))
        return EXIT_FAILURE
    return code if isinstance(code, int) else 0


def main() -> None:
    _open_missing_streams()
    log_to_stderr()
    _quieten_grpc()
    if not os.environ.get("FLOWEDGE_DEBUG"):
        sys.excepthook = _report_defect
    _require_tls13()
    sys.exit(run())


def _require_tls13() -> None:
    """Have gRPC, which is not imported yet, refuse versions of TLS before 1.3, as server and as client.

    gRPC's Python API sets no least version. Its list of ciphers is for TLS 1.2 and older only, and none of
    them fits an ECDSA certificate when the list has ciphers of RSA alone; TLS 1.3 has a list of its own.
    """
    os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES128-GCM-SHA256"


def _open_missing_streams() -> None:
    """Open the null device for each standard stream with which this process was started closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 (used to the end)


def _quieten_grpc() -> None:
    """Keep the log of gRPC's own library off standard error: FlowEdge says what failed, in its own format.

    The library reads the variables when it is imported; agents that this process starts inherit them.
    """
    if not os.environ.get("FLOWEDGE_DEBUG"):
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _usage_message(error: Any) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "flowedge"
    message = " ".join(str(error.format_message()).replace("Value error, ", "").split())
    return f"{message} (see {command} --help)" if message else f"see {command} --help"


def _system_message(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{error.filename}: {reason}"


def _complain(message: str) -> None:
    complain(" ".join(message.split()))


def _report_defect(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an unforeseen error as one line, with the way to see its traceback."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    _complain(f"internal error: {kind.__name__}: {error}{where}; FLOWEDGE_DEBUG=1 shows the whole traceback")


if __name__ == "__main__":
    main()
