"""`flowedge doctor`: what keeps devices from working together, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flowedge.cli.trust import ClusterDir, Insecure, choose_identity

if TYPE_CHECKING:
    from flowedge.doctor.checks.clocks import Validity
    from flowedge.doctor.examination import Examination
    from flowedge.doctor.finding import Finding

_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}


def doctor(
    peers: Annotated[
        str | None,
        typer.Option(
            "--peer", help="Look at these agents (host:port,...) too, besides those that are found."
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to look for devices.")] = 2.0,
    slow: Annotated[float, typer.Option(min=0, help="Mbit/s below which a link is slow.")] = 50.0,
    rate: Annotated[
        bool, typer.Option(help="Measure links between this device's idle agent and others.")
    ] = True,
    libraries: Annotated[
        bool, typer.Option(help="Try PyTorch and bitsandbytes, which takes seconds.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Look for what keeps devices from working together: network, clocks, versions, libraries, memory.

    Exits with 0 when nothing was found or what was found is only worth knowing, with 4 for warnings, and with
    1 for errors.
    """
    import json  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415

    from flowedge.doctor.finding import exit_code  # noqa: PLC0415

    choose_identity(cluster_dir, insecure)
    examination = _examination(peers, timeout, slow, rate, libraries)
    console = Console(stderr=True)
    with console.status("looking") as status:
        found = examination.run(lambda text: status.update(f"looking at {text}"))
    if as_json:
        print(json.dumps({"findings": [finding.to_json() for finding in found]}, indent=2))
    else:
        _print(found)
    raise typer.Exit(exit_code(found))


def _examination(peers: str | None, timeout: float, slow: float, rate: bool, libraries: bool) -> Examination:
    from flowedge.agent.config.loading import load_config  # noqa: PLC0415
    from flowedge.cli.options import split_peers  # noqa: PLC0415
    from flowedge.doctor.examination import Examination  # noqa: PLC0415
    from flowedge.net.address import WILDCARDS, join_address  # noqa: PLC0415

    config = load_config().config
    asked = config.agent.host
    host = "127.0.0.1" if asked is None or asked in WILDCARDS else asked
    return Examination(
        config.discovery,
        tuple(split_peers(peers)) if peers is not None else (),
        join_address(host, config.agent.port) if config.agent.port else None,
        discover_s=timeout,
        slow_bits_per_s=1e6 * slow,
        rates=rate,
        libraries=libraries,
        cache_dir=config.cache.dir,
        cache_gib=config.cache.gib,
        validity=_validity(),
    )


def _validity() -> Validity | None:
    from flowedge.doctor.checks.clocks import Validity  # noqa: PLC0415
    from flowedge.security.process import current  # noqa: PLC0415

    store = current().store
    if store is None:
        return None
    holder = store.credentials.holder
    return Validity(holder.not_before, holder.not_after)


def _print(found: list[Finding]) -> None:
    from rich.markup import escape  # noqa: PLC0415

    from flowedge.cli.screens.device_table import console  # noqa: PLC0415

    screen = console()
    for finding in found:
        severity = finding.kind.severity.value
        mark = f"[{_STYLES[severity]}]{severity}[/] {finding.kind.code}"
        screen.print(f"{mark}: {escape(finding.device)}: {escape(finding.detail)}", soft_wrap=True)
        screen.print(f"    {escape(finding.kind.remedy)}", soft_wrap=True)
    if not found:
        screen.print("Nothing was found that keeps devices from working together.")
