"""From facts to findings; every finding the doctor has is found here."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from flowedge.client.survey import AgentReply, Duplicate, Refusal, SurveyedAgent
from flowedge.core.errors import DeviceError, DeviceLostError
from flowedge.device.board.clock_rates import ClockRate
from flowedge.device.compute import NOT_INSTALLED, DeviceProbe
from flowedge.discovery.interfaces import Interface, choose
from flowedge.discovery.settings import DiscoverySettings
from flowedge.doctor import (
    agents,
    board,
    clocks,
    compute,
    links,
    membership,
    memory,
    mtu,
    multicast,
    ports,
    versions,
)
from flowedge.doctor.examination import KINDS
from flowedge.doctor.finding import Finding, FindingKind, Severity, exit_code, in_order
from flowedge.doctor.known_agents import KnownAgents
from flowedge.network.device_state import ConnectResult
from flowedge.planning.profile.measurement import LinkMeasurement
from flowedge.version import PROTOCOL_VERSION, VERSION
from tests.client.test_survey import device
from tests.support.board_files import cooler, cpu_policy, write_files

DOCUMENT = Path(__file__).parents[2] / "docs" / "discovery.md"
HERE = "attic"
GIB = 1 << 30
NOW = datetime(2030, 6, 1, 12, tzinfo=timezone.utc)
ETH0 = Interface("eth0", ("10.0.0.5/24",))
DEFAULT = DiscoverySettings()


def kinds(findings: Sequence[Finding]) -> list[FindingKind]:
    return [finding.kind for finding in findings]


def test_the_documentation_has_each_finding_as_the_code_has_it() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    table = [row for row in rows if row.count("|") == 5]
    assert table == [
        f"| `{kind.code}` | {kind.severity.value} | {kind.meaning} | {kind.remedy} |" for kind in KINDS
    ]
    assert len({kind.code for kind in KINDS}) == len(KINDS)


def test_the_exit_code_is_that_of_the_worst() -> None:
    info, warning, error = (
        Finding(FindingKind(severity, severity.value, "", ""), HERE, "") for severity in Severity
    )
    assert [exit_code(found) for found in ([], [info], [info, warning], [warning, error])] == [0, 0, 4, 1]
    assert in_order([info, warning, error]) == [error, warning, info]


def test_interfaces() -> None:
    def judge(*interfaces: Interface) -> list[FindingKind]:
        return kinds(multicast.judge_interfaces(choose(interfaces), DEFAULT, HERE))

    lo = Interface("lo", ("127.0.0.1/8",), multicast=False, loopback=True)
    silent = Interface("eth1", ("10.0.1.5/24",), multicast=False)
    assert judge(lo, ETH0) == []
    assert judge(lo) == [multicast.NO_NETWORK]
    assert judge(lo, Interface("docker0", ("172.17.0.1/16",))) == [multicast.NO_NETWORK]
    assert judge(lo, ETH0, silent) == [multicast.MULTICAST_OFF]
    assert judge(lo, ETH0, Interface("tun0", ("10.8.0.1/24",), multicast=False)) == []


def test_multicast() -> None:
    def judge(*heard: multicast.MulticastTraffic) -> list[FindingKind]:
        return kinds(multicast.judge_multicast(heard, HERE))

    assert judge(multicast.MulticastTraffic("eth0", True, frozenset(["10.0.0.9"]))) == []
    assert judge(multicast.MulticastTraffic("eth0", True)) == [multicast.MULTICAST_ALONE]
    assert judge(multicast.MulticastTraffic("eth0", False)) == [multicast.MULTICAST_BLOCKED]
    (found,) = multicast.judge_multicast([multicast.MulticastTraffic("eth0", False, problem="in use")], HERE)
    assert "in use" in found.detail
    lost = multicast.judge_arrival([("a", "10.0.0.1:7"), ("b", "10.0.0.2:7")], frozenset(["10.0.0.1:7"]))
    assert [(finding.kind, finding.device) for finding in lost] == [(multicast.MULTICAST_LOST, "b")]


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (ConnectResult.REFUSED, ports.PORT_CLOSED),
        (ConnectResult.SILENT, ports.PORT_FILTERED),
        (ConnectResult.NO_ROUTE, ports.NO_ROUTE),
        (ConnectResult.OPEN, ports.NO_ANSWER),
    ],
)
def test_ports(result: ConnectResult, kind: FindingKind) -> None:
    facts = ports.PortFacts("kitchen", "10.0.0.1:7", result, answered=False, problem="gibberish")
    (found,) = ports.judge_ports([facts, ports.PortFacts("b", "c:1", ConnectResult.OPEN, answered=True)])
    assert found.kind is kind
    assert "10.0.0.1:7" in found.detail


def test_an_agent_that_says_nothing_is_frozen_and_a_lost_pipeline_is_told() -> None:
    silent = ports.PortFacts("kitchen", "10.0.0.1:7", ConnectResult.OPEN, answered=False, silent=True)
    assert kinds(ports.judge_ports([silent])) == [ports.FROZEN]
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        assert ports.connect(f"127.0.0.1:{listener.getsockname()[1]}", 0.2).silent
    (found,) = agents.judge_pipelines([("d0", "its pipeline is being set up: device v1: it is frozen")])
    assert (found.kind, found.device) == (agents.PIPELINE_NOT_READY, "d0")
    assert "device v1" in found.detail


def test_mtu() -> None:
    def judge(own: int, agreed: int | None, passes: int | None) -> list[FindingKind]:
        return kinds(mtu.judge_mtu([mtu.MtuFacts("kitchen", own, agreed, passes)]))

    assert judge(1500, 1500, 1500) == judge(1500, 9000, 1500) == judge(1500, None, None) == []
    assert judge(1500, 1400, None) == [mtu.MTU_DIFFERS]
    assert judge(1500, 1500, 1280) == [mtu.MTU_PATH]
    assert mtu.sizes_below(1450) == [1450, 1420, 1400, 1350, 1280, 1000, 576]


def test_clocks() -> None:
    def judge(offset: float, uncertainty: float = 0.0) -> list[FindingKind]:
        return kinds(clocks.judge_clocks([clocks.ClockFacts("kitchen", offset, uncertainty)]))

    assert judge(1.9) == judge(-1.9) == judge(4.0, 2.5) == []
    assert judge(2.1) == judge(-60.0, 1.0) == [clocks.CLOCK_SKEW]
    assert "behind" in clocks.judge_clocks([clocks.ClockFacts("kitchen", -9.0, 0.0)])[0].detail


def test_certificates() -> None:
    valid = clocks.Validity(NOW - timedelta(days=1), NOW + timedelta(days=29))

    def judge(now: datetime, *others: float) -> list[tuple[FindingKind, str]]:
        facts = [clocks.ClockFacts("kitchen", offset, 0.0) for offset in others]
        return [(found.kind, found.device) for found in clocks.judge_certificate(valid, now, HERE, facts)]

    day = 86400.0
    assert judge(NOW, 0.0, day) == []
    assert judge(NOW - timedelta(days=2)) == [(clocks.CERTIFICATE_NOT_YET, HERE)]
    assert judge(NOW + timedelta(days=30)) == [(clocks.CERTIFICATE_EXPIRED, HERE)]
    assert judge(NOW, -2 * day) == [(clocks.CERTIFICATE_NOT_YET, "kitchen")]
    assert judge(NOW, 30 * day) == [(clocks.CERTIFICATE_EXPIRED, "kitchen")]
    assert judge(NOW + timedelta(days=27)) == [(clocks.CERTIFICATE_ENDS, HERE)]


def test_versions() -> None:
    def judge(protocol: int, version: str) -> list[FindingKind]:
        return kinds(versions.judge_versions([versions.VersionFacts("kitchen", protocol, version)]))

    assert judge(PROTOCOL_VERSION, VERSION) == []
    assert judge(PROTOCOL_VERSION + 1, VERSION) == [versions.PROTOCOL]
    assert judge(PROTOCOL_VERSION, "99.0") == [versions.VERSION_DIFFERS]


def test_duplicates() -> None:
    pair = ("a (10.0.0.1:7)", "a (10.0.0.2:7)")
    found = versions.judge_duplicates([Duplicate("id", "x", pair), Duplicate("name", "a", pair)])
    assert kinds(found) == [versions.SAME_ID, versions.SAME_NAME]
    assert all(address in finding.detail for finding in found for address in ("10.0.0.1:7", "10.0.0.2:7"))


def test_links() -> None:
    def judge(**facts: object) -> list[FindingKind]:
        return kinds(links.judge_links([links.LinkFacts("a", "b", **facts)]))  # type: ignore[arg-type]

    assert judge(bits_per_s=1e8, round_trip_s=0.001) == []
    assert judge(bits_per_s=1e7, round_trip_s=0.03) == [links.LINK_SLOW, links.LINK_LATENCY]
    assert judge(problem="busy") == [links.LINK_UNKNOWN]
    assert links.judge_links([links.LinkFacts("a", "b", 1e8, 0.001)], 1e9)[0].kind is links.LINK_SLOW


def test_agents_of_this_device() -> None:
    assert kinds(agents.judge_agents([], HERE)) == [agents.NOT_RUNNING]
    assert kinds(agents.judge_agents(["127.0.0.1:7"], HERE)) == [agents.LOOPBACK_ONLY]
    assert kinds(agents.judge_agents(["127.0.0.1:7"], HERE, joined=False)) == [membership.NOT_JOINED]
    assert agents.judge_agents(["127.0.0.1:7", "0.0.0.0:7"], HERE) == []
    assert agents.judge_agents([], HERE, refused=True) == []
    assert kinds(agents.judge_agents([], HERE, serves=False)) == [agents.NONE_HERE]
    idle = "LoadState=loaded\nActiveState=inactive\nUnitFileState="
    assert agents.judge_unit(agents.unit_facts(f"{idle}disabled\n"), HERE, serves=False) == []
    stopped = agents.judge_unit(agents.unit_facts(f"{idle}enabled\n"), HERE, serves=False)
    assert kinds(stopped) == [agents.UNIT_STOPPED]


def test_membership() -> None:
    valid = clocks.Validity(NOW - timedelta(days=1), NOW + timedelta(days=29), "shed (agent)")
    refused = membership.RefusalFacts("attic", Refusal.BY_AGENT, "shed has been revoked")
    refusing = membership.RefusalFacts("cellar", Refusal.BY_CALLER, "cellar has been revoked")

    def judge(*own: bool) -> list[tuple[FindingKind, str]]:
        certificates = [membership.HeldCertificate("shed (agent)", valid, revoked) for revoked in own]
        found = membership.judge_membership(certificates, [refused, refusing], HERE)
        return [(finding.kind, finding.device) for finding in found]

    both = [(membership.NOT_ACCEPTED, "attic"), (membership.PEER_NOT_ACCEPTED, "cellar")]
    assert judge(False) == both
    assert judge(True) == [(membership.REVOKED, HERE), both[1]]
    assert judge() == [(membership.NOT_JOINED, HERE)]
    assert membership.judge_membership([], [], HERE) == []
    foreign = membership.RefusalFacts("garage", Refusal.FOREIGN, "garage has joined no cluster")
    own = membership.HeldCertificate("shed (agent)", valid, revoked=False)
    (found,) = membership.judge_membership([own], [foreign] * 7, HERE)
    assert found.kind is membership.OTHER_CLUSTER
    assert found.detail == "garage, garage, garage, garage, garage and 2 more on this network"


def test_a_list_of_the_ca_that_is_older_than_an_agents_is_a_finding() -> None:
    others = [("attic", 41), ("cellar", 42)]
    assert membership.judge_lists(membership.ListFacts(42), others, HERE) == []
    assert membership.judge_lists(membership.ListFacts(), others, HERE) == []  # of no cluster
    (found,) = membership.judge_lists(membership.ListFacts(41), others, HERE)
    assert (found.kind, found.device) == (membership.OLD_LIST, "cellar")
    (found,) = membership.judge_lists(membership.ListFacts(41, "it is older"), others, HERE)
    assert (found.device, found.detail) == (HERE, "it is older")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("", []),
        ("LoadState=not-found\nActiveState=inactive\nNRestarts=0\n", []),
        ("LoadState=loaded\nActiveState=active\nResult=success\nNRestarts=0\n", []),
        ("LoadState=loaded\nActiveState=failed\nResult=exit-code\nNRestarts=0\n", [agents.UNIT_FAILED]),
        ("LoadState=loaded\nActiveState=inactive\nResult=success\nNRestarts=0\n", [agents.UNIT_STOPPED]),
        ("LoadState=loaded\nActiveState=activating\nResult=signal\nNRestarts=7\n", [agents.UNIT_RESTARTS]),
        ("LoadState=loaded\nActiveState=inactive\n\nLoadState=loaded\nActiveState=active\n", []),
        ("LoadState=loaded\nActiveState=inactive\n\nLoadState=not-found\n", [agents.UNIT_STOPPED]),
    ],
)
def test_the_unit(shown: str, expected: list[FindingKind]) -> None:
    assert kinds(agents.judge_unit(agents.unit_facts(shown), HERE)) == expected


def test_memory_and_disk() -> None:
    def judge(total: int, available: int, swap: int = 0) -> list[FindingKind]:
        return kinds(memory.judge_memory([memory.MemoryFacts(HERE, total, available, swap)]))

    assert judge(8 * GIB, 4 * GIB) == []
    assert judge(64 * GIB, 6 * GIB) == judge(2 * GIB, GIB // 4) == [memory.MEMORY_LOW]
    assert judge(8 * GIB, 4 * GIB, GIB) == [memory.SWAP_USED]

    def disk(free: int, limit: int, used: int) -> list[FindingKind]:
        return kinds(memory.judge_disk(memory.DiskFacts("/cache", free, limit, used), HERE))

    assert disk(9 * GIB, 16 * GIB, 8 * GIB) == disk(0, 0, 0) == disk(0, 16 * GIB, 17 * GIB) == []
    assert disk(7 * GIB, 16 * GIB, 8 * GIB) == [memory.DISK_LOW]


def test_boards() -> None:
    def judge(**facts: object) -> list[FindingKind]:
        return kinds(board.judge_board(board.BoardFacts(8 * GIB, **facts), HERE))  # type: ignore[arg-type]

    assert judge() == judge(zram=4 * GIB) == [], "on a PC, zram is the owner's choice"
    assert judge(is_board=True, zram=GIB // 4) == []
    assert judge(is_board=True, zram=4 * GIB) == [board.ZRAM]
    assert judge(release=(36, "4.3"), power_mode="15W") == [board.JETSON]
    assert judge(release=(35, "6.1")) == [board.JETSON, board.JETSON_OLD]
    assert judge(release=(39, "2.0"), is_board=True, zram=4 * GIB) == [board.JETSON, board.ZRAM]
    assert judge(slowed=("cpufreq-cpu0",)) == [board.TOO_HOT]
    assert kinds(board.judge_slowed([("kitchen", ""), ("attic", "undervoltage")])) == [board.TOO_HOT]
    (found,) = board.judge_board(board.BoardFacts(8 * GIB, (36, "4.3"), "MAXN_SUPER"), HERE)
    assert found.detail == "Jetson Linux R36.4.3, power mode MAXN_SUPER"


def test_clocks_that_are_held_low() -> None:
    def judge(clock: ClockRate, **facts: object) -> list[FindingKind]:
        found = board.BoardFacts(8 * GIB, clocks=(clock,), **facts)  # type: ignore[arg-type]
        return kinds(board.judge_board(found, HERE))

    idle = ClockRate("cpu0-3", 600_000_000, 600_000_000, 2_400_000_000, 2_400_000_000, "schedutil")
    saving, bounded = replace(idle, governor="powersave"), replace(idle, highest=1_500_000_000)
    assert judge(idle) == [], "it rises when there is work"
    assert judge(saving) == judge(bounded) == [board.CLOCKS_LOW]
    assert judge(replace(saving, governor="")) == [], "a processor that chooses itself"
    assert judge(bounded, slowed=("cpufreq-cpu0",)) == [board.TOO_HOT], "which is the reason"
    jetson = {"release": (36, "4.3"), "power_mode": "15W", "is_board": True}
    assert judge(bounded, **jetson) == [board.JETSON], "by the power mode, which is a choice"
    assert judge(saving, **jetson) == [board.JETSON, board.CLOCKS_LOW]
    (found, *_) = board.judge_board(board.BoardFacts(8 * GIB, (36, "4.3"), clocks=(bounded,)), HERE)
    assert found.detail == "Jetson Linux R36.4.3, cpu0-3 600 of 1500 MHz (hardware 2400)"


def test_the_largest_block() -> None:
    def judge(free: int, largest: int, problem: str = "") -> list[FindingKind]:
        return kinds(memory.judge_blocks([memory.BlockFacts("cuda:0", free, largest, problem)], HERE))

    assert judge(4 * GIB, 2 * GIB) == judge(0, 0) == []
    assert judge(4 * GIB, GIB) == judge(4 * GIB, 0, "the trial did not end") == [memory.IN_PIECES]


def test_what_a_board_says_is_read_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    assert board.board_facts(tmp_path).release is None
    write(
        "etc/nv_tegra_release",
        "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n",
    )
    write(
        "proc/swaps",
        "Filename Type Size Used Priority\n/dev/zram0 partition 650000 0 5\n/swap file 900 0 -2\n",
    )
    write_files(tmp_path, cooler(0, "pwm-fan", 3) | cooler(1, "devfreq-17000000.gpu", 2))
    write_files(tmp_path, cpu_policy(0, 729, 1510, 1984))
    write("bin/nvpmodel", '#!/bin/sh\n[ "$1" = -q ] && echo "NV Power Mode: MAXN_SUPER" && echo 2\n')
    (tmp_path / "bin" / "nvpmodel").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    found = board.board_facts(tmp_path)
    assert (found.release, found.power_mode) == ((36, "4.3"), "MAXN_SUPER")
    assert (found.zram, found.slowed) == (650_000 * 1024, ("devfreq-17000000.gpu",))
    assert found.is_board and [clock.name for clock in found.clocks] == ["cpu0-3"]


def test_compute_devices() -> None:
    def judge(cpu: DeviceProbe, gpu: DeviceProbe | None = None) -> list[FindingKind]:
        return kinds(compute.judge_compute(compute.ComputeFacts(cpu, gpu), HERE))

    cpu, gpu = DeviceProbe("cpu"), DeviceProbe("cuda:0")
    no_nf4 = {"nf4": "no kernel image is available"}
    assert judge(cpu) == judge(cpu, gpu) == []
    assert judge(cpu, replace(gpu, problem="no driver")) == [compute.NO_CUDA]
    assert judge(replace(cpu, problem="no module"), gpu) == [compute.TORCH_BROKEN]
    assert judge(replace(cpu, quant_problems=no_nf4)) == [compute.NO_BITSANDBYTES]
    assert judge(cpu, replace(gpu, quant_problems=no_nf4)) == [compute.NO_GPU_QUANT]
    without = {"nf4": NOT_INSTALLED, "llm-int8": NOT_INSTALLED}  # as on a board, which is no fault
    assert judge(replace(cpu, quant_problems=without)) == [compute.NOT_HERE]
    both = replace(cpu, quant_problems={**without, "int4": "no kernel"})
    assert judge(both, replace(gpu, quant_problems=without)) == [compute.NO_BITSANDBYTES, compute.NOT_HERE]
    assert kinds(compute.judge_choices([("kitchen", ""), ("attic", "no driver")])) == [compute.NO_CUDA]


def seen(number: int, role: str = "idle") -> SurveyedAgent:
    return SurveyedAgent((f"10.0.0.{number}:7",), answer=AgentReply(device(number, role=role), 0.001, None))


def test_links_are_measured_there_and_back() -> None:
    asked = []

    def measure(address: str, peer: str, peer_id: str) -> LinkMeasurement:
        asked.append((address, peer))
        if address == "10.0.0.2:7":
            raise DeviceLostError(peer, "connection timed out")
        if peer == "10.0.0.3:7":
            raise DeviceError("board-3", "it is being measured")
        return LinkMeasurement(bytes=10**6, seconds=0.08, round_trips=(0.001,))

    found = KnownAgents.split(
        [seen(number) for number in range(1, 4)] + [seen(4, "stage")], [Interface("e", ("10.0.0.1/24",))]
    )
    assert [one.address for one in found.own] == ["10.0.0.1:7"]
    measured, findings = links.measure_links(found, {}, measure)
    assert kinds(findings) == [ports.NOT_REACHED_BACK]
    assert "board-2" in findings[0].detail
    told = {(link.sender, link.receiver): link for link in measured}
    assert told["board-1", "board-2"].bits_per_s == 1e8
    assert "being measured" in str(told["board-1", "board-3"].problem)
    assert told["board-3", "board-1"].bits_per_s == 1e8
    assert "a stage" in str(told["board-1", "board-4"].problem)
    assert len(asked) == 4
