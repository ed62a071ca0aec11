"""The `flowedge` command. Modules that are slow to import are imported by the commands that need them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import typer

from flowedge.cli.agent import agent
from flowedge.cli.bench import bench
from flowedge.cli.cluster import cluster
from flowedge.cli.demo import demo
from flowedge.cli.devices import devices
from flowedge.cli.doctor import doctor
from flowedge.cli.exits import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE
from flowedge.cli.generate import generate
from flowedge.cli.inspect import inspect
from flowedge.cli.join import join
from flowedge.cli.models import models
from flowedge.cli.profile import profile
from flowedge.cli.release import release
from flowedge.cli.train_drafter import train_drafter
from flowedge.errors import BadRequestError, CapacityError, FlowEdgeError
from flowedge.version import VERSION

# The common ancestor of typer's usage errors; newer versions no longer export it by name.
_ClickException: type[Any] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="flowedge",
    help="One large language model across several small devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command()(devices)
app.command()(doctor)
app.command()(agent)
app.command()(release)
app.add_typer(cluster, name="cluster")
app.command()(join)
app.command()(inspect)
app.add_typer(models)
app.command()(demo)
app.command()(bench)
app.command()(profile)
app.command()(train_drafter)


@app.callback(invoke_without_command=True)
def flowedge(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    """One large language model across several small devices."""
    if version:
        print(f"flowedge {VERSION}")
        raise typer.Exit


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; what went wrong is one line on stderr."""
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
    return code if isinstance(code, int) else 0


def main() -> None:
    """The entry point of the command."""
    if not os.environ.get("FLOWEDGE_DEBUG"):
        sys.excepthook = _report_defect
    sys.exit(run())


def _usage_message(error: Any) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "flowedge"
    message = " ".join(str(error.format_message()).split())
    return f"{message} (see {command} --help)" if message else f"see {command} --help"


def _complain(message: str) -> None:
    print(f"flowedge: {' '.join(message.split())}", file=sys.stderr)


def _report_defect(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An error nobody foresaw: still one line, with the way to see more."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    _complain(f"internal error: {kind.__name__}: {error}{where}; FLOWEDGE_DEBUG=1 shows the whole traceback")


if __name__ == "__main__":
    main()
