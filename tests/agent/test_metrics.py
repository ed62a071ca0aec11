"""The metrics an agent serves, held against their documentation."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from flowedge.agent.metrics import AgentMetrics, MetricsReadings
from flowedge.agent.metrics_server import MetricsServer
from flowedge.agent.roles.role_holder import RoleHolder
from flowedge.agent.throttling import ThrottlingWatch
from flowedge.core.errors import DeviceError
from flowedge.device.board.temperature import temperatures
from flowedge.engine.statistics import RequestClock
from flowedge.live.compute_thread import ComputeThread, Span

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*)\|", re.MULTILINE)
SUFFIX = {"counter": "_total", "info": "_info"}


@pytest.fixture
def readings() -> MetricsReadings:
    compute = ComputeThread("here")
    compute.stop(1.0)
    return MetricsReadings("here", RoleHolder("here"), compute, ThrottlingWatch())


@pytest.fixture
def metrics(readings: MetricsReadings) -> AgentMetrics:
    made = AgentMetrics()
    made.registry.register(readings)
    return made


def test_the_table_lists_what_there_is(metrics: AgentMetrics, readings: MetricsReadings) -> None:
    described = {name: kind for name, kind, _ in ROW.findall(DOCUMENT.read_text(encoding="utf-8"))}
    families = {
        family.name + SUFFIX.get(family.type, ""): family.type
        for family in [*metrics.registry.collect(), *readings.describe()]
    }
    assert described == families


def test_labels_are_those_of_the_table(metrics: AgentMetrics) -> None:
    metrics.computed("forward", Span(1.0, 1.01), 3)
    sent, _ = metrics.of_link("in_band")
    sent(5)
    described = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, _, labels in ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    }
    for family in metrics.registry.collect():
        for sample in family.samples:
            name = family.name + SUFFIX.get(family.type, "")
            assert set(sample.labels) - {"le"} == described[name], sample


def test_metrics_are_served_and_nothing_else(metrics: AgentMetrics) -> None:
    server = MetricsServer("here", metrics.registry, "127.0.0.1", 0)
    try:
        metrics.tokens(3, RequestClock(10.0).count(3, 10.25), first=True)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        assert "\nflowedge_tokens_total 3.0\n" in text
        assert "\nflowedge_time_to_first_token_seconds_sum 0.25\n" in text
        assert "\nflowedge_inter_token_seconds_count 2.0\n" in text
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/", timeout=30)
        with pytest.raises(DeviceError, match=f"port {server.port} is in use.*choose another port"):
            MetricsServer("here", metrics.registry, "127.0.0.1", server.port)
    finally:
        server.stop()


def test_zones_of_a_board(tmp_path: Path) -> None:
    zones = {"cpu-thermal": "48500", "gpu-thermal": "47250", "cv0-thermal": None, "soc-thermal": "warm"}
    for number, (name, celsius) in enumerate(zones.items()):
        zone = tmp_path / f"thermal_zone{number}"
        zone.mkdir()
        (zone / "type").write_text(f"{name}\n", encoding="ascii")
        if celsius is not None:
            (zone / "temp").write_text(f"{celsius}\n", encoding="ascii")
    assert temperatures(tmp_path) == {"cpu-thermal": 48.5, "gpu-thermal": 47.25}
