"""Having agents measure themselves and the links between them."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from flowedge.client.channel import CHANNEL_OPTIONS, check_address
from flowedge.client.failure import ended_early
from flowedge.client.stubs import measure_stub
from flowedge.drafting.choice import drafter_label
from flowedge.net.grpc_status import from_status
from flowedge.profiling.measurement import (
    DeviceMeasurement,
    LinkMeasurement,
    MeasureOptions,
    link_measurement,
    read_measurement,
)
from flowedge.security.tls.channels import open_sync_channel
from flowedge.v1 import measure_pb2 as pb
from flowedge.version import PROTOCOL_VERSION

DEVICE_TIMEOUT_S = 1260.0
LINK_TIMEOUT_S = 130.0


def measure_device(
    address: str, options: MeasureOptions, report: Callable[[str], None], timeout_s: float = DEVICE_TIMEOUT_S
) -> DeviceMeasurement:
    """Has an idle agent measure its device; `options.threads` and `compute` are the agent's own.

    report: told what is measured next.
    Raises DeviceError when the agent has a role or measures already, DeadlineError after `timeout_s`, the
    error of a model that cannot be measured, ProtocolError for an answer that is none.
    """
    request = pb.MeasureDeviceRequest(
        model=options.model,
        drafter=drafter_label(options.drafters),
        drafters=options.drafters,
        quant=options.quant,
        dtype=options.dtype,
        repeats=options.repeats,
        stack_mib=options.stack_mib,
        protocol_version=PROTOCOL_VERSION,
    )
    text = ""
    with open_sync_channel(check_address(address), CHANNEL_OPTIONS) as channel:
        try:
            for reply in measure_stub(channel).MeasureDevice(request, timeout=timeout_s):
                if reply.progress:
                    report(reply.progress)
                text = reply.measurement_json or text
        except grpc.RpcError as error:
            raise from_status(error, address) from error
    if not text:
        raise ended_early(address, "it had measured everything")
    return read_measurement(text, address)


def measure_link(
    address: str,
    peer: str,
    peer_id: str,
    *,
    num_bytes: int,
    round_trips: int,
    timeout_s: float = LINK_TIMEOUT_S,
) -> LinkMeasurement:
    """Has the agent at `address` measure its link to the one at `peer`, whose id is `peer_id`.

    Both have to be idle. Raises BadRequestError for sizes out of range or another agent at `peer`,
    DeviceError when one of the two is not idle, DeviceLostError or DeadlineError when one does not answer.
    """
    request = pb.MeasureLinkRequest(
        peer=check_address(peer),
        peer_id=peer_id,
        bytes=num_bytes,
        round_trips=round_trips,
        protocol_version=PROTOCOL_VERSION,
    )
    with open_sync_channel(check_address(address), CHANNEL_OPTIONS) as channel:
        try:
            reply = measure_stub(channel).MeasureLink(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise from_status(error, address) from error
    return link_measurement(
        address, bytes=reply.bytes, seconds=reply.seconds, round_trips=tuple(reply.round_trips_s)
    )
