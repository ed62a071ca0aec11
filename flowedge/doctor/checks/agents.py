"""Whether an agent runs on this device, and how systemd sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.doctor.finding import Finding, FindingKind, Severity
from flowedge.net.address import is_loopback

MANY_RESTARTS = 3
UNIT = "flowedge-agent.service"
UNITS = (UNIT, "flowedge-draft-node.service")  # a draft node is an agent too, and runs instead

NOT_RUNNING = FindingKind(
    "agent-not-running",
    Severity.ERROR,
    "no agent was found on this device",
    f"Start it: systemctl start {UNIT}, or flowedge agent.",
)
LOOPBACK_ONLY = FindingKind(
    "agent-on-loopback",
    Severity.WARNING,
    "the agent of this device listens on loopback, where no other device reaches it",
    "Start it with --host 0.0.0.0, or set agent.host in its configuration.",
)
UNIT_FAILED = FindingKind(
    "unit-failed",
    Severity.ERROR,
    "systemd has given up on the agent",
    f"Read why: journalctl -u {UNIT} -n 50; then systemctl reset-failed {UNIT} and start it.",
)
UNIT_STOPPED = FindingKind(
    "unit-stopped",
    Severity.WARNING,
    "the agent's unit is installed, but not running",
    f"systemctl enable --now {UNIT}",
)
UNIT_RESTARTS = FindingKind(
    "unit-restarts",
    Severity.WARNING,
    f"systemd has restarted the agent {MANY_RESTARTS} times or more",
    f"Read why it ends: journalctl -u {UNIT} -p warning.",
)
KINDS = (NOT_RUNNING, LOOPBACK_ONLY, UNIT_FAILED, UNIT_STOPPED, UNIT_RESTARTS)


@dataclass(frozen=True)
class UnitFacts:
    """What `systemctl show` says; `installed` is False where there is no systemd or no unit."""

    installed: bool
    active: str = ""  # ActiveState: active, activating, inactive, failed
    result: str = ""
    restarts: int = 0
    name: str = UNIT


def judge_agents(addresses: Sequence[str], device: str) -> list[Finding]:
    """From where the agents that answer on this device listen."""
    if not addresses:
        return [Finding(NOT_RUNNING, device, "no agent of this device answers")]
    if all(is_loopback(address) for address in addresses):
        return [Finding(LOOPBACK_ONLY, device, f"it listens on {', '.join(addresses)}")]
    return []


def judge_unit(unit: UnitFacts, device: str) -> list[Finding]:
    """From systemd's view of the agent."""
    findings = []
    if unit.installed and unit.active == "failed":
        findings.append(
            Finding(UNIT_FAILED, device, f"{unit.name} has failed: {unit.result or 'no reason given'}")
        )
    elif unit.installed and unit.active == "inactive":
        findings.append(Finding(UNIT_STOPPED, device, f"{unit.name} is inactive"))
    if unit.installed and unit.restarts >= MANY_RESTARTS:
        findings.append(Finding(UNIT_RESTARTS, device, f"{unit.name} was restarted {unit.restarts} times"))
    return findings


def unit_facts(shown: str) -> UnitFacts:
    """From the lines `systemctl show` prints of UNITS: the one that is in use, else the first installed."""
    installed = [facts for facts in map(_facts, shown.split("\n\n")) if facts.installed]
    used = [facts for facts in installed if facts.active != "inactive"]
    return next(iter(used or installed), UnitFacts(installed=False))


def _facts(shown: str) -> UnitFacts:
    fields = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    if fields.get("LoadState") != "loaded":
        return UnitFacts(installed=False)
    restarts = fields.get("NRestarts", "")
    return UnitFacts(
        installed=True,
        active=fields.get("ActiveState", ""),
        result=fields.get("Result", ""),
        restarts=int(restarts) if restarts.isdigit() else 0,
        name=fields.get("Id", UNIT),
    )
