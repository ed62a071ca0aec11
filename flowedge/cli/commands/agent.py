"""`flowedge agent`: makes this device part of the network."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from flowedge.agent.config.agent_config import SECTIONS
from flowedge.agent.config.loading import DEFAULT_FILE, load_config
from flowedge.agent.config.rendering import effective_toml
from flowedge.cli.orphan import ExitWithParent, stop_when_input_closes
from flowedge.cli.output import say_text

FLAGS = {
    "--host": ("agent", "host"),
    "--port": ("agent", "port"),
    "--name": ("agent", "name"),
    "--device": ("agent", "device"),
    "--threads": ("agent", "threads"),
    "--advertise/--no-advertise": ("agent", "advertise"),
    "--cache-dir": ("cache", "dir"),
    "--cache-gib": ("cache", "gib"),
    "--cluster-dir": ("security", "cluster_dir"),
    "--insecure": ("security", "insecure"),
    "--hub/--no-hub": ("weights", "hub"),
    "--log-format": ("log", "format"),
    "--log-level": ("log", "level"),
}
"""The section and key that each flag sets."""
_METAVARS = {
    "host": "ADDRESS",
    "name": "NAME",
    "device": "DEVICE",
    "dir": "DIR",
    "cluster_dir": "DIR",
    "gib": "GIB",
}


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Have Typer see an option for each of FLAGS in place of the command's `**flags`."""
    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    options = [_option(flag, *setting) for flag, setting in FLAGS.items()]
    command.__signature__ = signature.replace(parameters=[*options, *own])  # type: ignore[attr-defined]
    return command


def _option(flag: str, section: str, key: str) -> inspect.Parameter:
    """Return the parameter of a flag, which is None when the flag is not given."""
    field = SECTIONS[section].model_fields[key]
    types = (field.annotation, *get_args(field.annotation))
    kind: Any = next((each for each in (bool, int, float) if each in types), str)
    least, most = (
        next((getattr(bound, name) for bound in field.metadata if hasattr(bound, name)), None)
        for name in ("ge", "le")
    )
    words = [word for each in types if get_origin(each) is Literal for word in get_args(each)]
    metavar = "|".join(words) or _METAVARS.get(key)
    options = typer.Option(flag, help=field.description, min=least, max=most, metavar=metavar)
    option = Annotated[kind | None, options]
    only_by_name = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(_parameter(flag), only_by_name, default=None, annotation=option)


def _parameter(flag: str) -> str:
    return flag.partition("/")[0].removeprefix("--").replace("-", "_")


@_with_flags
def agent(
    *,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Configuration file. Default: {DEFAULT_FILE}, if it exists."),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print every setting with its origin, and exit."),
    ] = False,
    exit_with_parent: ExitWithParent = False,
    **flags: Any,
) -> None:
    """Run the agent of this device, which serves a part of a pipeline when asked to.

    Flags take precedence over environment variables (FLOWEDGE_AGENT__PORT), and those over the configuration
    file.
    """
    given = {flag.partition("/")[0]: (*setting, flags[_parameter(flag)]) for flag, setting in FLAGS.items()}
    effective = load_config(given, config)
    if print_config:
        say_text(effective_toml(effective))
        return
    if exit_with_parent:
        stop_when_input_closes()
    from flowedge.agent.main import serve  # noqa: PLC0415 (printing the configuration takes no server)

    serve(effective.config, file=effective.file)
