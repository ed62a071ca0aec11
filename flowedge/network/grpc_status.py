"""Conversion of FlowEdge errors to gRPC statuses and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NoReturn

import grpc
import grpc.aio

from flowedge.core.errors import (
    CapacityError,
    DeadlineError,
    DeviceError,
    DeviceLostError,
    FlowEdgeError,
    ProtocolError,
    error_from_code,
)
from flowedge.network.connection_failure import TLS_HINT, why_of_grpc
from flowedge.network.replies import ReplyNotReadError

ERROR_KEY = "flowedge-error-bin"  # trailing metadata: JSON with code, device and reason, and retry_after_s
MAX_WAIT_S = 7 * 86400.0  # of retry_after_s

# What gRPC reports when a device that wants TLS closes a plaintext connection; which of them is a race.
_CLOSED = ("Socket closed", "Connection reset by peer")
# What gRPC reports when the server at the address speaks HTTP/1, another protocol, or HTTP/2 without gRPC.
_NOT_GRPC = (
    "Expected SETTINGS frame as the first",
    "http1.x server",
    "Received http2 header with status",
)
# What gRPC writes before the reason why it could not connect; the error names the address itself.
_UNCONNECTED = re.compile(
    r"^failed to connect to all addresses; last error: (?:[A-Z_]+: )?(?:ipv[46]:\S+: )?"
    r"(?:Failed to connect to remote host: )?(?:connect: )?"
)


def to_status(error: FlowEdgeError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return the status code, details and trailing metadata that carry an error to a client."""
    device = error.device if isinstance(error, DeviceError) else ""
    reason = error.reason if isinstance(error, DeviceError) else str(error)
    content: dict[str, Any] = {"code": error.code, "device": device, "reason": reason}
    if error.retry_after_s is not None:
        content["retry_after_s"] = error.retry_after_s
    return grpc.StatusCode[error.status], str(error), ((ERROR_KEY, json.dumps(content).encode()),)


def from_status(
    error: grpc.aio.AioRpcError | grpc.RpcError, peer: str, *, wants_tls: bool = False
) -> FlowEdgeError:
    """Return the error behind a failed call to `peer`, a device's name or address.

    wants_tls: whether the peer may have closed the connection because it is in plaintext.
    """
    carried = _carried(error)
    if carried is not None:
        return carried
    call = error if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
    code = call.code() if call is not None else None
    details = (call.details() if call is not None else None) or str(error)
    return _of_status(code, details, peer, wants_tls)


def says_why(error: grpc.aio.AioRpcError) -> bool:
    """Return whether the agent itself has said why a call failed; otherwise it was not there to say it."""
    return _carried(error) is not None


def _of_status(code: grpc.StatusCode | None, details: str, peer: str, wants_tls: bool) -> FlowEdgeError:
    """Return the error for a failed call whose reason gRPC says, not a FlowEdge agent."""
    match code:
        case _ if any(sign in details for sign in _NOT_GRPC):
            return ProtocolError(
                f"{peer} is not a FlowEdge agent: a web server or another program answers there; "
                "`flowedge devices` lists the addresses of agents"
            )
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED | grpc.StatusCode.INTERNAL:
            hint = TLS_HINT if wants_tls and any(closed in details for closed in _CLOSED) else ""
            why = why_of_grpc(_UNCONNECTED.sub("", details))
            return DeviceLostError(peer, f"the connection failed: {why}{hint}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineError(f"device {peer} did not answer in time")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return CapacityError(f"device {peer}: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return ProtocolError(f"{peer} is not a FlowEdge agent, or has another version: {details}")
        case _:
            return DeviceError(peer, f"the call failed: {details}")


def passed_deadline(error: grpc.aio.AioRpcError | grpc.RpcError) -> bool:
    """Return whether a call failed because its own deadline passed, not by an error of the peer."""
    call = error if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
    return _carried(error) is None and call is not None and call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: FlowEdgeError) -> NoReturn:
    """End a call with an error; a caller that has not taken a reply yet gets the error after it."""
    if isinstance(error, ReplyNotReadError):
        await error.sending
    status, details, metadata = to_status(error)
    await context.abort(status, details, metadata)
    raise AssertionError("abort returned")


def _carried(error: Any) -> FlowEdgeError | None:
    """Return the error in the trailing metadata, if a FlowEdge agent wrote it."""
    read = getattr(error, "trailing_metadata", None)
    metadata: Iterable[tuple[str, Any]] = (read() if read is not None else None) or ()
    for key, value in metadata:
        if key == ERROR_KEY:
            try:
                content = json.loads(value)
                carried = error_from_code(
                    str(content["code"]), str(content["device"]), str(content["reason"])
                )
                if "retry_after_s" in content:
                    carried.retry_after_s = _checked_wait(content["retry_after_s"])
                return carried
            except (ValueError, KeyError, TypeError):
                return None
    return None


def _checked_wait(seconds: Any) -> float:
    """Return a number of seconds to wait; raise ValueError if it is none."""
    wait = float(seconds)
    if not 0 <= wait <= MAX_WAIT_S:
        raise ValueError(f"{wait} is no time to wait")
    return wait
