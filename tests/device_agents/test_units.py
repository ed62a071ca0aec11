"""The services that install.sh installs, as systemd checks their unit files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from flowedge.agent.agent_config import DeadlineSettings
from flowedge.cli.main import EXIT_USAGE
from flowedge.cluster.tls.renewable_server import MAX_CONNECTIONS
from flowedge.gateway.config import GatewayDeadlines, GatewayLimits

UNITS = sorted((Path(__file__).parents[2] / "device_agents" / "systemd").glob("*.service"))
AGENTS = [unit for unit in UNITS if unit.stem in ("flowedge-agent", "flowedge-draft-node")]
GATEWAY = next(unit for unit in UNITS if unit.stem == "flowedge-serve")
EXPOSURE = 3.0  # the most that is allowed


@pytest.fixture(scope="module")
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    return found


def read(unit: Path) -> dict[str, list[str]]:
    """Return all settings of a service, with the list of values of each."""
    settings: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            settings.setdefault(key, []).append(value)
    return settings


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_exposure_is_low(unit: Path, analyze: str) -> None:
    threshold = f"--threshold={EXPOSURE * 10:.0f}"
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", threshold, str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"exposure level for {unit.name}" in done.stdout


@pytest.mark.parametrize("unit", AGENTS, ids=lambda unit: unit.stem)
def test_accelerators_stay_reachable(unit: Path) -> None:
    settings = read(unit)
    assert "PrivateDevices" not in settings and "MemoryDenyWriteExecute" not in settings
    allowed = " ".join(settings["DeviceAllow"])
    assert all(group in allowed for group in ("nvidia", "nvhost", "nvgpu", "nvmap", "drm"))
    assert settings["SupplementaryGroups"] == ["video render"]


@pytest.mark.parametrize("unit", AGENTS, ids=lambda unit: unit.stem)
def test_systemd_waits_longer_than_the_drain(unit: Path) -> None:
    assert float(read(unit)["TimeoutStopSec"][0]) >= DeadlineSettings().drain_s + 10


def test_systemd_waits_longer_than_the_drain_of_the_gateway() -> None:
    assert float(read(GATEWAY)["TimeoutStopSec"][0]) >= GatewayDeadlines().drain_s + 10


def test_the_gateway_is_as_confined_as_the_agent() -> None:
    agent, gateway = read(AGENTS[0]), read(GATEWAY)
    accelerators = {"DeviceAllow", "DevicePolicy", "SupplementaryGroups"}
    accelerators |= {"RuntimeDirectory", "RuntimeDirectoryMode"}
    assert agent.keys() - gateway.keys() == accelerators
    assert gateway["PrivateDevices"] == ["yes"]
    own = {"Description", "After", "ExecStart", "Environment", "WorkingDirectory", "TimeoutStartSec"}
    own |= {"User", "Group", "StateDirectory", "CacheDirectory"}
    assert {key for key in agent.keys() & gateway.keys() if agent[key] != gateway[key]} == own


def test_the_gateway_shares_no_directory_with_the_agent() -> None:
    agent, gateway = read(AGENTS[0]), read(GATEWAY)
    for key in ("User", "StateDirectory", "CacheDirectory", "WorkingDirectory"):
        assert agent[key] != gateway[key]


def test_descriptors_suffice_for_the_connections() -> None:
    for unit in UNITS:
        assert int(read(unit)["LimitNOFILE"][0]) >= 2 * max(MAX_CONNECTIONS, GatewayLimits().connections)


def test_a_wrong_configuration_is_not_tried_again() -> None:
    for unit in UNITS:
        assert read(unit)["RestartPreventExitStatus"] == [str(EXIT_USAGE)]


def test_the_draft_node_is_as_confined_as_the_agent() -> None:
    agent, draft_node = (read(unit) for unit in AGENTS)
    different = {key for key in agent if agent[key] != draft_node[key]}
    assert different == {"Description", "ExecStart"}
    assert draft_node.keys() - agent.keys() == {"Conflicts"}
