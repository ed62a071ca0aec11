"""The findings of `flowedge doctor`: the examination, with its progress, and what it has found."""

from __future__ import annotations

from collections.abc import Set

from rich.text import Text

from flowedge.agent.config_loading import load_config
from flowedge.cli.options import split_peers
from flowedge.cli.output import wrap_words
from flowedge.cli.screens.tables import error_console, line, output_console
from flowedge.cluster.credentials import CredentialStore
from flowedge.cluster.identities import Identities, IdentityKind, kind_of
from flowedge.cluster.process import current
from flowedge.doctor.clocks import Validity
from flowedge.doctor.examination import Examination
from flowedge.doctor.finding import Finding
from flowedge.doctor.membership import HeldCertificate, ListFacts
from flowedge.network.address import WILDCARDS, join_address

_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}


def find(peers: str | None, timeout: float, slow: float, rate: bool, libraries: bool) -> list[Finding]:
    """Examine devices and links as the options of the command say; standard error shows the progress."""
    examination = _examination(peers, timeout, slow, rate, libraries)
    with error_console().status("examining") as status:
        return examination.run(lambda text: status.update(line(f"examining {text}")))


def _examination(peers: str | None, timeout: float, slow: float, rate: bool, libraries: bool) -> Examination:
    config = load_config().config
    asked = config.agent.host
    host = "127.0.0.1" if asked is None or asked in WILDCARDS else asked
    used = current().store
    identities = Identities.open(used.folder.parent) if used is not None else Identities(())
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
        # Root writes no list to the directory of a service's user: only the used identity has the latest.
        certificates=tuple(_certificate(store, used.revoked.serials) for store in identities.stores)
        if used is not None
        else (),
        damaged=tuple(f"{each.folder}: {each.reason}" for each in identities.damaged),
        revoked=ListFacts(used.revoked.number, used.doubt) if used is not None else ListFacts(),
    )


def _certificate(store: CredentialStore, revoked: Set[int]) -> HeldCertificate:
    holder = store.credentials.holder
    validity = Validity(holder.not_before, holder.not_after, str(holder.member))
    serves = kind_of(holder.member.roles) is IdentityKind.DEVICE
    return HeldCertificate(str(holder.member), validity, holder.serial in revoked, serves)


def show_findings(found: list[Finding]) -> None:
    console = output_console()
    for finding in found:
        severity = finding.kind.severity.value
        found_line = line(f" {finding.kind.code}: {finding.device}: {finding.detail}")
        console.print(Text.assemble((severity, _STYLES[severity]), found_line))
        for text in wrap_words(finding.kind.remedy, console.width, "    "):
            console.print(line(text))
    if not found:
        console.print("No problems found.")
