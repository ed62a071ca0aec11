"""Measures this device; has agents measure themselves and the links between them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from flowedge.client.channel import open_stub, stream_ended
from flowedge.client.loop_thread import ReadAhead, run
from flowedge.core.pipeline_config import drafter_label
from flowedge.device.board.device_kind import device_kind
from flowedge.models.host.libraries import import_libraries
from flowedge.network.address import checked_address
from flowedge.planning.profile.measurement import (
    DeviceMeasurement,
    LinkMeasurement,
    MeasureOptions,
    link_measurement,
    read_measurement,
)
from flowedge.v1 import measure_pb2 as pb
from flowedge.v1.measure_pb2_grpc import MeasureStub
from flowedge.version import PROTOCOL_VERSION

DEVICE_TIMEOUT_S = 1260.0
LINK_TIMEOUT_S = 130.0


def measure_here(
    options: MeasureOptions, name: str, tell: Callable[[str], None], kind: str | None = None
) -> DeviceMeasurement:
    """Measure this device, as `profile_device` does."""
    import_libraries()
    from flowedge.planning.measuring.profiler import profile_device  # noqa: PLC0415 (imports torch)

    return profile_device(options, name, kind or device_kind(), tell)


def measure_device(address: str, options: MeasureOptions, report: Callable[[str], None]) -> DeviceMeasurement:
    """Have an idle agent measure its device.

    Args:
        options: `threads`, `compute` and `cuda_graphs` are not used; the agent has its own.
        report: called with what is measured next.

    Raises:
        DeviceError: when the agent has a role, or is measuring already.
        DeadlineError: after DEVICE_TIMEOUT_S seconds.
        ProtocolError: when the answer is not a measurement.
        FlowEdgeError: the agent's error when the model cannot be measured.
    """
    text = ""
    with ReadAhead(_measuring(address, options)) as replies:
        for reply in replies:
            if reply.progress:
                report(reply.progress)
            text = reply.measurement_json or text
    if not text:
        raise stream_ended(address, "it had measured everything")
    return read_measurement(text, address)


async def measure_sizes(
    address: str, options: MeasureOptions, *, only_stored: bool = False
) -> DeviceMeasurement | None:
    """Have an agent measure a model by its sizes, unless it did before; None where `only_stored` finds none.

    Raises what `measure_device` raises.
    """
    text = ""
    async with aclosing(_measuring(address, options, only_stored=only_stored)) as replies:
        async for reply in replies:
            text = reply.measurement_json or text
    if not text and not only_stored:
        raise stream_ended(address, "it had measured everything")
    return read_measurement(text, address) if text else None


async def _measuring(
    address: str, options: MeasureOptions, *, only_stored: bool = False
) -> AsyncGenerator[pb.MeasureDeviceReply, None]:
    request = pb.MeasureDeviceRequest(
        drafter=drafter_label(options.drafters),
        protocol_version=PROTOCOL_VERSION,
        sizes="" if options.sizes is None else options.sizes.model_dump_json(),
        only_stored=only_stored,
        **options.model_dump(exclude={"threads", "compute", "cuda_graphs", "sizes"}),
    )
    async with open_stub(address, MeasureStub) as stub:
        async for reply in stub.MeasureDevice(request, timeout=DEVICE_TIMEOUT_S):
            yield reply


def measure_link(
    address: str, peer: str, peer_id: str, *, num_bytes: int, round_trips: int
) -> LinkMeasurement:
    """Have the agent at `address` measure its link; see `link_measured_by`."""
    return run(link_measured_by(address, peer, peer_id, num_bytes=num_bytes, round_trips=round_trips))


async def link_measured_by(
    address: str, peer: str, peer_id: str, *, num_bytes: int, round_trips: int
) -> LinkMeasurement:
    """Have the agent at `address` measure its link to the agent at `peer`, whose id must be `peer_id`.

    Raises:
        BadRequestError: when a size is out of range, or another agent is at `peer`.
        DeviceError: when an agent is not idle.
        DeviceLostError: when an agent cannot be reached.
        DeadlineError: when an agent does not answer in time.
    """
    request = pb.MeasureLinkRequest(
        peer=checked_address(peer),
        peer_id=peer_id,
        bytes=num_bytes,
        round_trips=round_trips,
        protocol_version=PROTOCOL_VERSION,
    )
    async with open_stub(address, MeasureStub) as stub:
        reply: pb.MeasureLinkReply = await stub.MeasureLink(request, timeout=LINK_TIMEOUT_S)
    return link_of_reply(reply, address)


def link_of_reply(reply: pb.MeasureLinkReply, sender: str) -> LinkMeasurement:
    """Return what a sender has measured."""
    return link_measurement(
        sender, bytes=reply.bytes, seconds=reply.seconds, round_trips=tuple(reply.round_trips_s)
    )
