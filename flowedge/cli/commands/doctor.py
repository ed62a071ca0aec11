"""`flowedge doctor`: what keeps devices from working together, and what to do about it."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from flowedge.cli.options import AsJson, ClusterDir, Insecure
from flowedge.cli.output import say_json


def doctor(
    peers: Annotated[
        str | None,
        typer.Option("--peer", metavar="HOST:PORT,...", help="Also examine these agents."),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time to search for devices.")] = 2.0,
    slow: Annotated[
        float, typer.Option(min=0, metavar="MBITS", help="Report links below this rate in Mbit/s.")
    ] = 50.0,
    rate: Annotated[
        bool, typer.Option(help="Measure the links between this device and other idle agents.")
    ] = True,
    libraries: Annotated[
        bool, typer.Option(help="Test PyTorch and bitsandbytes, which takes some seconds.")
    ] = True,
    as_json: AsJson = False,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Find what keeps devices from working together: network, clocks, versions, libraries, memory.

    Exits with 1 if there is an error, with 4 if there are warnings, otherwise with 0.
    """
    from flowedge.cli.screens.findings_screen import find, show_findings
    from flowedge.cli.trust import choose_credentials
    from flowedge.doctor.finding import exit_code

    choose_credentials(cluster_dir, insecure, datetime.timedelta())
    found = find(peers, timeout, slow, rate, libraries)
    if as_json:
        say_json({"findings": [finding.to_json() for finding in found]})
    else:
        show_findings(found)
    raise typer.Exit(exit_code(found))
