"""Whether an agent runs on this device, and the state of its systemd unit."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowedge.doctor.finding import ERROR, INFO, WARNING, Finding
from flowedge.doctor.membership import NOT_JOINED
from flowedge.network.address import is_loopback

MANY_RESTARTS = 3
UNIT = "flowedge-agent.service"
UNITS = (UNIT, "flowedge-draft-node.service")  # one of the two runs: a draft node is an agent too
_SYSTEMD = Path("/run/systemd/system")
_FIELDS = "Id,LoadState,ActiveState,Result,NRestarts,UnitFileState"
_ANSWER_S = 10.0

NOT_RUNNING = ERROR(
    "agent-not-running",
    "no agent was found on this device",
    "Start it: `flowedge agent`; where it is a service, `systemctl start flowedge-agent` (on the draft node, "
    "flowedge-draft-node).",
)
NONE_HERE = INFO(
    "no-agent-here",
    "no agent runs on this machine, which has joined as a client or admin only",
    "Nothing, if it only asks. To have it serve as well: `flowedge cluster token` where the cluster was "
    "made, then `flowedge join` and `flowedge agent` here.",
)
LOOPBACK_ONLY = WARNING(
    "agent-on-loopback",
    "the agent of this member of a cluster listens on loopback, where no other device reaches it",
    "Leave out --host, and agent.host in its configuration: then it listens on all networks.",
)
UNIT_FAILED = ERROR(
    "unit-failed",
    "systemd has given up on the agent",
    "Read why: `journalctl -u flowedge-agent -u flowedge-draft-node -n 50`. When that is mended, `systemctl "
    "restart` the unit.",
)
UNIT_STOPPED = WARNING(
    "unit-stopped",
    "the agent's unit is installed, but not running",
    "`systemctl enable --now` the unit.",
)
UNIT_RESTARTS = WARNING(
    "unit-restarts",
    f"systemd has restarted the agent {MANY_RESTARTS} times or more",
    "Read why it ends: `journalctl -u flowedge-agent -u flowedge-draft-node -p warning`.",
)
PIPELINE_NOT_READY = WARNING(
    "pipeline-not-ready",
    "a draft node's pipeline is being set up, for the first time or after it has lost a device",
    "If that does not end by itself, look at the device that the reason names; docs/reliability.md says what "
    "to do in each state.",
)
KINDS = (
    NOT_RUNNING,
    NONE_HERE,
    LOOPBACK_ONLY,
    UNIT_FAILED,
    UNIT_STOPPED,
    UNIT_RESTARTS,
    PIPELINE_NOT_READY,
)


@dataclass(frozen=True)
class UnitFacts:
    """The agent's unit, as `systemctl show` describes it.

    Attributes:
        installed: False where there is no systemd or no unit.
        active: ActiveState: active, activating, inactive or failed.
        result: why the unit has failed.
        enabled: whether it starts with the device.
    """

    installed: bool
    active: str = ""
    result: str = ""
    restarts: int = 0
    name: str = UNIT
    enabled: bool = False


def judge_agents(
    addresses: Sequence[str],
    device: str,
    *,
    joined: bool = True,
    refused: bool = False,
    serves: bool = True,
) -> list[Finding]:
    """Judge where the agents of this device listen.

    joined: whether the device is a cluster's member. refused: whether an agent of it runs, but refuses or is
    refused, which is a finding of its own. serves: False for a machine of a client or admin.
    """
    if not addresses and refused:
        return []
    if not addresses and not serves:
        return [Finding(NONE_HERE, device, "no agent of this machine answers")]
    if not addresses:
        return [Finding(NOT_RUNNING, device, "no agent of this device answers")]
    if all(is_loopback(address) for address in addresses):
        kind = LOOPBACK_ONLY if joined else NOT_JOINED
        return [Finding(kind, device, f"it listens on {', '.join(addresses)}")]
    return []


def judge_pipelines(not_ready: Sequence[tuple[str, str]]) -> list[Finding]:
    """Judge draft nodes whose pipelines cannot answer, each given with the reason."""
    return [Finding(PIPELINE_NOT_READY, name, reason) for name, reason in not_ready]


def judge_unit(unit: UnitFacts, device: str, *, serves: bool = True) -> list[Finding]:
    """Judge the unit. A machine that does not serve may have a unit that is not enabled."""
    findings = []
    if unit.installed and unit.active == "failed":
        findings.append(
            Finding(UNIT_FAILED, device, f"{unit.name} has failed: {unit.result or 'no reason given'}")
        )
    elif unit.installed and unit.active == "inactive" and (serves or unit.enabled):
        findings.append(Finding(UNIT_STOPPED, device, f"{unit.name} is inactive"))
    if unit.installed and unit.restarts >= MANY_RESTARTS:
        findings.append(Finding(UNIT_RESTARTS, device, f"{unit.name} was restarted {unit.restarts} times"))
    return findings


def read_unit() -> UnitFacts:
    """Ask systemd for the agent's unit; without systemd, the unit counts as not installed."""
    systemctl = shutil.which("systemctl")
    if systemctl is None or not _SYSTEMD.is_dir():
        return UnitFacts(installed=False)
    command = [systemctl, "show", *UNITS, f"--property={_FIELDS}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except subprocess.TimeoutExpired:
        return UnitFacts(
            installed=True, active="failed", result=f"systemctl did not answer in {_ANSWER_S:g} s"
        )
    return unit_facts(done.stdout)


def unit_facts(shown: str) -> UnitFacts:
    """Read what `systemctl show` prints of UNITS; return the unit in use, or else the first installed."""
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
        enabled=fields.get("UnitFileState") == "enabled",
    )
