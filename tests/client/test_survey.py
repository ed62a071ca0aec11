"""The survey of agents: each agent once, at the address where it answers; duplicates are marked."""

from __future__ import annotations

from dataclasses import replace

from flowedge.cli.screens.device_table import device_rows
from flowedge.client import Device
from flowedge.client.announced import query_order
from flowedge.client.clock_offset import ClockOffset, Exchange
from flowedge.client.survey import AgentReply, SurveyedAgent, survey
from flowedge.core.errors import DeviceError, DeviceLostError
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.planning.measuring.link_rates import link_rates
from flowedge.planning.profile.measurement import LinkMeasurement
from flowedge.v1 import agent_pb2
from flowedge.version import PROTOCOL_VERSION


def device(number: int, **changes: object) -> Device:
    plain = Device.from_proto(
        agent_pb2.Device(
            id=f"id-{number}",
            name=f"board-{number}",
            instance=f"start-{number}",
            protocol_version=PROTOCOL_VERSION,
            version="0.1.0",
            memory_total=4 << 30,
        )
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def record(number: int, *addresses: str, **changes: object) -> AdvertisedDevice:
    plain = AdvertisedDevice(
        f"board-{number}",
        f"id-{number}",
        addresses[0],
        "test",
        1,
        PROTOCOL_VERSION,
        "0.1.0",
        addresses[1:],
        f"start-{number}",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


class Network:
    """Who answers at which address."""

    def __init__(self, **devices: Device) -> None:
        self.devices = {f"10.0.0.{key[1:]}:7": device for key, device in devices.items()}

    def __call__(self, address: str, name: str | None) -> AgentReply:
        if address not in self.devices:
            raise DeviceLostError(address, "it does not answer")
        return AgentReply(self.devices[address], 0.001, None)


def test_the_address_that_answers_is_used() -> None:
    (one,) = survey([record(1, "10.0.0.8:7", "10.0.0.1:7")], ask=Network(a1=device(1)))
    assert one.addresses == ("10.0.0.1:7", "10.0.0.8:7")
    assert one.answer is not None


def test_an_address_that_leads_to_someone_else_is_not_used() -> None:
    (one,) = survey([record(1, "10.0.0.2:7")], ask=Network(a2=device(2)))
    assert one.answer is None
    assert one.problem is not None
    assert "board-2" in one.problem


def test_an_agent_that_is_named_and_found_is_there_once() -> None:
    network = Network(a1=device(1), a2=device(1))
    (one,) = survey([record(1, "10.0.0.1:7")], ["10.0.0.2:7"], ask=network)
    assert one.addresses == ("10.0.0.1:7", "10.0.0.2:7")


def test_a_peer_that_does_not_answer_is_shown() -> None:
    (one,) = survey([], ["10.0.0.9:7"], ask=Network())
    assert one.name == "10.0.0.9:7"
    assert "does not answer" in str(one.problem)


def test_the_start_before_a_restart_is_left_out() -> None:
    old, new = record(1, "10.0.0.1:6", instance="old"), record(1, "10.0.0.1:7")
    (one,) = survey([old, new], stale=[old], ask=Network(a1=device(1)))
    assert one.address == "10.0.0.1:7"


def test_another_version_is_shown_and_not_asked() -> None:
    other = record(1, "10.0.0.1:7", protocol_version=PROTOCOL_VERSION + 1)
    (one,) = survey([other], ask=Network())
    assert "install the same version" in str(one.problem)
    named = Network(a2=device(2, protocol_version=PROTOCOL_VERSION + 1))
    (two,) = survey([], ["10.0.0.2:7"], ask=named)
    assert "install the same version" in str(two.problem)


def test_duplicates_are_marked_on_each_of_them() -> None:
    clone, namesake = device(1, instance="clone"), device(3, name="board-1")
    rows = device_rows(
        survey(
            [], ["10.0.0.1:7", "10.0.0.2:7", "10.0.0.3:7"], ask=Network(a1=device(1), a2=clone, a3=namesake)
        )
    )
    marks = {row["address"]: row["duplicates"] for row in rows}
    assert marks["10.0.0.1:7"][0] == "same id as board-1 (10.0.0.2:7)"
    assert marks["10.0.0.2:7"][0] == "same id as board-1 (10.0.0.1:7)"
    assert marks["10.0.0.3:7"] == ["same name as board-1 (10.0.0.2:7)"]


def agents(count: int, **roles: str) -> list[SurveyedAgent]:
    return [
        SurveyedAgent(
            (f"10.0.0.{number}:7",),
            answer=AgentReply(device(number, role=roles.get(f"r{number}", "idle")), 0.001, None),
        )
        for number in range(1, count + 1)
    ]


def test_links_are_measured_from_each_idle_agent_to_the_next() -> None:
    asked: list[tuple[str, str, str]] = []

    def measure(address: str, peer: str, peer_id: str) -> LinkMeasurement:
        asked.append((address, peer, peer_id))
        if address == "10.0.0.3:7":
            raise DeviceError("board-3", "it has gone away")
        return LinkMeasurement(bytes=1_000_000, seconds=0.08, round_trips=(0.002, 0.001))

    rates = link_rates(agents(4, r2="stage"), measure)
    assert asked == [
        ("10.0.0.1:7", "10.0.0.3:7", "id-3"),
        ("10.0.0.3:7", "10.0.0.4:7", "id-4"),
        ("10.0.0.4:7", "10.0.0.1:7", "id-1"),
    ]
    first = rates["10.0.0.1:7"]
    assert (first.to, first.bits_per_s, first.round_trip_s) == ("board-3", 1e8, 0.001)
    assert rates["10.0.0.2:7"].problem == "not measured: it is a stage"
    assert "gone away" in str(rates["10.0.0.3:7"].problem)


def test_a_single_agent_has_no_link() -> None:
    assert "no other idle agent" in str(link_rates(agents(1))["10.0.0.1:7"].problem)


def test_clocks_on_the_wall_are_compared_where_they_are_told() -> None:
    slow = Exchange(sent=0.0, received=0.5, device=0.0, wall=1000.5, device_wall=1003.0)
    quick = Exchange(sent=1.0, received=1.1, device=0.0, wall=1001.1, device_wall=1004.0)
    offset = ClockOffset.of_walls([slow, quick])
    assert offset is not None
    assert round(offset.offset, 3) == 2.95
    assert round(offset.uncertainty, 3) == 0.05
    assert ClockOffset.of_walls([Exchange(0.0, 0.5, 0.0)]) is None


def test_an_answer_that_nobody_foresaw_is_a_problem_of_one_agent() -> None:
    def ask(address: str, name: str | None) -> AgentReply:
        if name == "board-1":
            raise RecursionError
        raise DeviceLostError(address, "it is silent")

    found = survey([record(1, "10.0.0.1:1"), record(2, "10.0.0.2:1")], ["10.0.0.3:1"], ask=ask)
    problems = {agent.name: agent.problem or "" for agent in found}
    assert "its answer cannot be read: RecursionError" in problems["board-1"]
    assert "it is silent" in problems["board-2"]


def test_agents_that_answered_before_are_asked_first_and_the_time_is_limited() -> None:
    asked = []

    def ask(address: str, name: str | None) -> AgentReply:
        asked.append(name)
        raise DeviceLostError(address, "it is silent")

    many = [record(number, f"10.0.0.{number}:1") for number in range(1, 101)]
    assert query_order(many, ["id-77"])[0].id == "id-77"
    assert sorted(query_order(many, [])) == sorted(many)
    assert query_order(many, []) != query_order(many, [])
    found = survey(many, limit_s=-1.0, ask=ask)
    assert asked == []
    assert all("too many others did not answer" in str(agent.problem) for agent in found)
