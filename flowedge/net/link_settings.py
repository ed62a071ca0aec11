"""Times and sizes of the links between devices."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.core.messages import MAX_FRAME_BYTES


@dataclass(frozen=True)
class LinkSettings:
    """How long a link waits, in seconds, and how much it takes."""

    heartbeat_s: float = 0.5  # a sign of life is sent this often, both ways
    silence_s: float = 3.0  # a peer that has not been heard for so long is lost
    # The same for the sender of segments, whose heartbeats wait behind a segment that a slow network is
    # still carrying; the draft node, which watches every stage over the express lane, is quicker.
    upstream_silence_s: float = 30.0
    connect_s: float = 5.0  # a peer has to answer a new stream within this
    send_s: float = 60.0  # a single message has to be taken by the transport within this
    max_replies: int = 1024  # replies that may wait for a peer that does not read them
    max_message_bytes: int = MAX_FRAME_BYTES + (1 << 20)

    @property
    def channel_options(self) -> list[tuple[str, int]]:
        """Options of gRPC channels and servers.

        Channels to one address share a TCP connection unless told; in-band and express must not.
        """
        return [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            # A proxy of the environment has no business between devices of one network.
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            # Two agents on one port would share the connections between them.
            ("grpc.so_reuseport", 0),
        ]
