"""What the blocking client and the asyncio client have in common."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

import grpc

from flowedge.client.channel import SILENCE_S, stream_ended
from flowedge.client.transcript import Transcript
from flowedge.core.errors import DeviceLostError, FlowEdgeError
from flowedge.net.address import checked_address
from flowedge.net.grpc_status import from_status
from flowedge.security.tls.channels import AsyncConnection, Connection

if TYPE_CHECKING:
    from flowedge.security.process import Security


@dataclass(eq=False, repr=False)
class BaseClient:
    """A client of the agent at `address`.

    It connects with the first call, which raises AccessError if the peer's certificate does not fit.

    Attributes:
        timeout_s: seconds that a whole generation may take.
        silence_s: seconds without any message, signs of life included, after which a device is lost.
        name: the name that the device's certificate must have; any name of the cluster if None.
        security: the credentials to show (docs/security.md); from the state directory if None.

    Raises:
        BadRequestError: when the form of the address is not host:port.
    """

    address: str
    _: KW_ONLY
    timeout_s: float = 600.0
    silence_s: float = SILENCE_S
    name: str | None = None
    security: Security | None = None
    _connection: Connection | AsyncConnection = field(init=False)

    def __post_init__(self) -> None:
        checked_address(self.address)

    def error_of(self, error: grpc.RpcError) -> FlowEdgeError:
        """Take note of a failed call and return the FlowEdge error behind it."""
        self._connection.note(error)
        return from_status(error, self.address)


class StreamedTranscript(Transcript):
    """A transcript that grows while a call to a draft node streams its events."""

    def __init__(self, client: BaseClient, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id
        self._client = client

    def _silent(self) -> FlowEdgeError:
        reason = f"no sign of life for {self._client.silence_s:g} s"
        return DeviceLostError(self._client.address, reason).of_request(self.request_id)

    def _failed(self, error: grpc.RpcError) -> FlowEdgeError:
        return self._client.error_of(error).of_request(self.request_id)

    def _ended_early(self) -> FlowEdgeError:
        return stream_ended(self._client.address, "the answer was complete").of_request(self.request_id)
