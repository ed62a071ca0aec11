"""The Measure service: its measurements and refusals, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from flowedge.agent.agent_config import AgentConfig
from flowedge.agent.device_info import DeviceInfo
from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.role_holder import RoleHolder
from flowedge.agent.services.measure_service import MeasureService
from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble, release
from flowedge.client.loop_thread import run
from flowedge.cluster.tls.call_admission import CallAdmission
from flowedge.core.errors import BadRequestError, DeviceError, DeviceLostError, FlowEdgeError, ProtocolError
from flowedge.device.compute import find_compute
from flowedge.live.compute_thread import ComputeThread
from flowedge.live.transport.listener import LinkListener
from flowedge.network.grpc_status import from_status
from flowedge.planning.measuring.link_sender import LinkLimits
from flowedge.planning.measuring.measure import measure_device, measure_link, measure_sizes
from flowedge.planning.placement.live_fleet import measure_options, profile_of_measured
from flowedge.planning.profile import shipped
from flowedge.planning.profile.measurement import LinkMeasurement, MeasureOptions, read_measurement
from flowedge.v1 import measure_pb2 as pb
from flowedge.v1 import measure_pb2_grpc as rpc
from flowedge.version import PROTOCOL_VERSION
from flowedge.weights.local_weights import LocalWeights
from tests.support.processes import agents

SMALL = MeasureOptions(model="bundled", repeats=1, stack_mib=4)
MIB = 1 << 20


@pytest.fixture(scope="module")
def pair_of_agents() -> Iterator[tuple[str, str]]:
    """Two idle agents."""
    with agents(["measure-d0", "measure-v1"]) as running:
        yield running[0].address, running[1].address


def agent_id(address: str) -> str:
    with Client(address) as client:
        return client.describe().id


def link(sender: str, receiver: str, **changes: Any) -> LinkMeasurement:
    given: dict[str, Any] = {"peer_id": agent_id(receiver), "num_bytes": MIB, "round_trips": 5, **changes}
    return measure_link(sender, receiver, **given)


def test_a_link_is_measured(pair_of_agents: tuple[str, str]) -> None:
    first, second = pair_of_agents
    for sender, receiver in ((first, second), (second, first)):
        found = link(sender, receiver)
        assert found.bytes == MIB
        assert found.bits_per_s > 0
        assert len(found.round_trips) == 5


def test_only_the_agent_that_is_meant_is_sent_data(pair_of_agents: tuple[str, str]) -> None:
    first, second = pair_of_agents
    with pytest.raises(BadRequestError, match="not the device that was meant"):
        link(first, second, peer_id=agent_id(first))
    with pytest.raises(BadRequestError, match="not an address"):
        link(first, "nowhere", peer_id="x")
    with pytest.raises(DeviceLostError, match=r"127\.0\.0\.1:1"):
        link(first, "127.0.0.1:1", peer_id="x")
    with pytest.raises(DeviceError, match="measuring a link already"):
        link(first, first)


@pytest.mark.parametrize(
    "change", [{"num_bytes": 1}, {"num_bytes": 1 << 40}, {"round_trips": 0}, {"round_trips": 10**6}]
)
def test_a_link_is_measured_within_bounds(pair_of_agents: tuple[str, str], change: dict[str, int]) -> None:
    with pytest.raises(BadRequestError, match="is measured with"):
        link(*pair_of_agents, **change)


def refusal(call: Callable[[Any], Any], address: str) -> FlowEdgeError:
    """The error that a call of the Measure service ends with."""
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        call(rpc.MeasureStub(channel))
    return from_status(caught.value, address)


def test_requests_of_another_protocol_are_refused(pair_of_agents: tuple[str, str]) -> None:
    old = PROTOCOL_VERSION + 1
    device = pb.MeasureDeviceRequest(model="bundled", repeats=1, stack_mib=4, protocol_version=old)
    asked = refusal(lambda stub: list(stub.MeasureDevice(device, timeout=20)), pair_of_agents[0])
    assert isinstance(asked, ProtocolError)
    other = pb.MeasureLinkRequest(peer=pair_of_agents[1], protocol_version=old)
    assert isinstance(
        refusal(lambda stub: stub.MeasureLink(other, timeout=20), pair_of_agents[0]), ProtocolError
    )


def test_what_cannot_be_measured_is_refused(pair_of_agents: tuple[str, str]) -> None:
    asked = pb.MeasureDeviceRequest(
        model="bundled", repeats=0, stack_mib=4, protocol_version=PROTOCOL_VERSION
    )
    error = refusal(lambda stub: list(stub.MeasureDevice(asked, timeout=20)), pair_of_agents[0])
    assert isinstance(error, BadRequestError)
    assert "repeats" in str(error)


def test_an_agent_that_is_being_measured_takes_nothing_else(pair_of_agents: tuple[str, str]) -> None:
    first, second = pair_of_agents
    request = pb.MeasureDeviceRequest(
        model="bundled", repeats=100, stack_mib=64, protocol_version=PROTOCOL_VERSION
    )
    with grpc.insecure_channel(first) as channel:
        call = rpc.MeasureStub(channel).MeasureDevice(request, timeout=120)
        assert next(iter(call)).progress
        with pytest.raises(DeviceError, match="being measured already"):
            measure_device(first, SMALL, print)
        with pytest.raises(DeviceError, match="being measured already"):
            link(second, first)
        with pytest.raises(DeviceError, match="it is being measured"):
            assemble(PipelineSpec(draft_node=first, stages=(second,)), lambda *_: None)
        call.cancel()
    deadline = time.monotonic() + 60
    while True:  # the timing that was going on ends first
        try:
            link(second, first)
            return
        except DeviceError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def small_sizes(hidden: int) -> MeasureOptions:
    sizes = shipped.model("bundled").model_copy(update={"hidden": hidden, "intermediate": 64, "vocab": 64})
    return measure_options(sizes, "none").model_copy(update={"repeats": 1, "stack_mib": 4})


def test_a_model_is_measured_by_its_sizes_once(pair_of_agents: tuple[str, str]) -> None:
    first, second = pair_of_agents
    options = small_sizes(128)
    assert run(measure_sizes(first, options, only_stored=True)) is None, "nothing is stored yet"
    found = run(measure_sizes(first, options))
    assert found is not None
    times = found.model.times
    assert (times.hidden, times.vocab, times.quant) == (128, 64, "none")
    assert set(times.layer_ms) == {1, 4, 16, 64}
    assert times.verify_ms
    assert not found.quantised
    profile = profile_of_measured(found, 4 << 30)
    assert (profile.memory_gib, profile.dequantise_gweights_s) == (4.0, "hidden")
    assert profile.measured == times
    assemble(PipelineSpec(draft_node=first, stages=(second,)), lambda *_: None)
    try:
        assert run(measure_sizes(first, options)) == found, "what is stored is given in any role"
        with pytest.raises(DeviceError, match="flowedge release"):
            run(measure_sizes(first, small_sizes(192)))
    finally:
        release([first], "")


def test_sizes_that_make_no_model_are_refused(pair_of_agents: tuple[str, str]) -> None:
    asked = pb.MeasureDeviceRequest(
        model="x", sizes='{"layers": 2}', repeats=1, stack_mib=4, protocol_version=PROTOCOL_VERSION
    )
    error = refusal(lambda stub: list(stub.MeasureDevice(asked, timeout=20)), pair_of_agents[0])
    assert isinstance(error, BadRequestError)
    assert "the sizes of the model cannot be read: title: Field required" in str(error)


def test_an_agent_with_a_role_is_not_measured(pair_of_agents: tuple[str, str]) -> None:
    first, second = pair_of_agents
    assemble(PipelineSpec(draft_node=first, stages=(second,)), lambda *_: None)
    try:
        for address in (first, second):
            with pytest.raises(DeviceError, match="flowedge release"):
                measure_device(address, SMALL, print)
        with pytest.raises(DeviceError, match="flowedge release"):
            link(first, second)
    finally:
        release([first], "")


def test_what_is_no_measurement_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a-device sent a measurement that cannot be read"):
        read_measurement('{"name": "x"}', "a-device")
    with pytest.raises(ProtocolError, match="characters"):
        read_measurement(" " * (1 << 21), "a-device")


@asynccontextmanager
async def served(limits: LinkLimits) -> AsyncIterator[Any]:
    """A stub of the service with these limits, in this process."""
    config, compute = AgentConfig(), ComputeThread("here")
    server = grpc.aio.server(interceptors=[CallAdmission()])
    port = server.add_insecure_port("127.0.0.1:0")
    identity = DeviceInfo.of(config, port, find_compute("cpu"))
    library = LocalWeights.configured(None, 0)
    agent = Agent(identity, config, compute, RoleHolder("here"), library, LinkListener("here", None))
    service = MeasureService(agent, limits)
    rpc.add_MeasureServicer_to_server(service, server)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield rpc.MeasureStub(channel)
    finally:
        await server.stop(0)
        compute.stop(5)


def test_a_sink_takes_no_more_than_it_says() -> None:
    async def send() -> grpc.aio.AioRpcError:
        limits = LinkLimits(min_bytes=1, max_bytes=1000, chunk_bytes=10)
        async with served(limits) as stub:
            chunks = [pb.SinkChunk(data=bytes(900))] * 3
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Sink(iter(chunks), timeout=20)
            return caught.value

    assert "at most 1000 bytes" in str(from_status(asyncio.run(send()), "here"))


def test_probes_and_silence_have_bounds() -> None:
    async def ask(probes: list[pb.Probe], limits: LinkLimits) -> str:
        async with served(limits) as stub:
            call = stub.Ping(timeout=20)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                for probe in probes:
                    await call.write(probe)
                while True:
                    await call.read()
            return str(from_status(caught.value, "here"))

    large = asyncio.run(ask([pb.Probe(data=bytes(2000))], LinkLimits()))
    assert "at most 1024 bytes" in large
    silent = asyncio.run(ask([], LinkLimits(step_s=0.2)))
    assert "no probe arrived within 0.2 s" in silent
