"""Times and sizes of the links between devices."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from flowedge.core.message_limits import MAX_FRAME_BYTES
from flowedge.core.settings_group import Seconds, SettingsGroup, setting

MIB = 1 << 20
GRPC_MESSAGE_BYTES = 2 << 20  # most bytes of a message that gRPC takes; frames do not travel by it


class LinkDeadlines(SettingsGroup):
    """How long a link waits, in seconds."""

    heartbeat_s: Seconds = setting(0.5, "Interval between signs of life on a link.")
    silence_s: Seconds = setting(3.0, "A peer that is silent for this long counts as lost.")
    # The draft node, which hears every stage on its express link, finds a lost stage sooner.
    upstream_silence_s: Seconds = setting(
        30.0, "A sender of segments that is silent for this long counts as lost; a slow network may delay it."
    )
    connect_s: Seconds = setting(5.0, "Time for a peer to answer a new stream.")
    send_s: Seconds = setting(60.0, "Time for a peer to receive a single message.")

    @model_validator(mode="after")
    def _heartbeats_come_in_time(self) -> LinkDeadlines:
        for name in ("silence_s", "upstream_silence_s"):
            if getattr(self, name) <= self.heartbeat_s:
                raise ValueError(f"{name} must be longer than heartbeat_s, or every peer would count as lost")
        return self


class MessageLimit(SettingsGroup):
    """How large a message between the devices of a pipeline may be."""

    message_mib: int = setting(
        MAX_FRAME_BYTES // MIB + 1,
        "Maximum MiB of one pipeline message; a segment of many rows of a large model takes several.",
        ge=1,
        le=1024,
    )


class LinkSettings(LinkDeadlines, MessageLimit):
    """How long a link waits, in seconds, and how much it takes."""

    max_replies: ClassVar[int] = 1024  # replies that may wait for a peer that does not read them

    @property
    def max_message_bytes(self) -> int:
        return self.message_mib * MIB

    @property
    def channel_options(self) -> list[tuple[str, int]]:
        """Options of gRPC channels and servers.

        Channels to one address share a TCP connection unless told, and end together then.
        """
        return [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES),
            # A closed channel keeps a socket that is connecting for this long.
            ("grpc.min_reconnect_backoff_ms", 5_000),
            ("grpc.keepalive_time_ms", 10_000),
            # After a network that failed for less than silence_s, TCP may wait for as long again.
            ("grpc.keepalive_timeout_ms", round(1000 * max(5.0, 2 * self.silence_s + 1))),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            # A proxy of the environment has no business between devices of one network.
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
        ]
