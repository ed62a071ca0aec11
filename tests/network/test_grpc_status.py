"""Errors keep their class, device and reason on the way through a gRPC status."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from flowedge.core.errors import (
    BadRequestError,
    CapacityError,
    CheckpointError,
    DeadlineError,
    DeviceError,
    DeviceLostError,
    FlowEdgeError,
    GrammarError,
    PipelineNotReadyError,
    ProtocolError,
)
from flowedge.network.grpc_status import ERROR_KEY, from_status, to_status

# Times that nobody can wait for.
WAITS = [
    b'{"code": "capacity", "device": "", "reason": "", "retry_after_s": %s}' % seconds
    for seconds in (b"-1", b"NaN", b"1e9", b'"soon"', b"null")
]


def rpc_error(
    code: grpc.StatusCode, details: str = "", trailing: tuple[tuple[str, bytes], ...] = ()
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)


@pytest.mark.parametrize(
    "error",
    [
        BadRequestError("no"),
        GrammarError("grammar (regex) cannot be used"),
        CapacityError("too long, by 3 tokens"),
        CheckpointError("grün: no such model"),
        ProtocolError("odd"),
        DeadlineError("late"),
        DeviceError("jetson-ä", "it is busy"),
        DeviceLostError("pi", "silent"),
        CapacityError.later("no room", 12.5),
        PipelineNotReadyError("d0", "its pipeline is being set up"),
    ],
    ids=lambda error: error.code,
)
def test_round_trip(error: FlowEdgeError) -> None:
    code, details, trailing = to_status(error)
    back = from_status(rpc_error(code, details, trailing), "peer")
    assert type(back) is type(error)
    assert str(back) == str(error)
    if isinstance(error, DeviceError):
        assert isinstance(back, DeviceError) and back.device == error.device
    assert back.retry_after_s == error.retry_after_s


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, DeviceLostError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineError),
        (grpc.StatusCode.UNIMPLEMENTED, ProtocolError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, CapacityError),
        (grpc.StatusCode.UNKNOWN, DeviceError),
    ],
)
def test_a_status_of_grpc_itself_names_the_peer(code: grpc.StatusCode, kind: type[FlowEdgeError]) -> None:
    found = from_status(rpc_error(code, "details"), "10.0.0.7:5000")
    assert type(found) is kind
    assert "10.0.0.7:5000" in str(found)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"3", b'{"code": "capacity"}', *WAITS])
def test_metadata_that_is_garbage_is_ignored(content: bytes) -> None:
    found = from_status(rpc_error(grpc.StatusCode.UNAVAILABLE, "gone", ((ERROR_KEY, content),)), "peer")
    assert isinstance(found, DeviceLostError)
