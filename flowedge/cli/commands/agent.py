"""`flowedge agent`: makes this device part of the network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flowedge.agent.config_loading import AGENT_FORM, DEFAULT_FILE, load_config
from flowedge.agent.config_rendering import effective_toml
from flowedge.cli.orphan import ExitWithParent, stop_when_input_closes
from flowedge.cli.output import log_lines, say_text
from flowedge.cli.setting_flags import SettingFlags

FLAGS = SettingFlags(
    AGENT_FORM,
    {
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
    },
    {
        "host": "ADDRESS",
        "name": "NAME",
        "device": "DEVICE",
        "dir": "DIR",
        "cluster_dir": "DIR",
        "gib": "GIB",
    },
)


@FLAGS.added_to
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
    effective = load_config(FLAGS.given(flags), config)
    if print_config:
        say_text(effective_toml(AGENT_FORM, effective))
        return
    if exit_with_parent:
        stop_when_input_closes()
    from flowedge.agent.main import serve

    if effective.config.log.format == "json":
        log_lines()  # of the error that ends it
    serve(effective.config, file=effective.file)
