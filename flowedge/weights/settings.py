"""How weights are fetched and given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WeightsSettings:
    """Of one agent; times in seconds, sizes in bytes."""

    directories: bool = True  # a model's directory on this device may be used
    hub: bool = False  # the hub may be asked for what nobody on the network has
    peers: tuple[str, ...] = ()  # agents that are asked for weights beside those of the pipeline
    streams: int = 4  # received at once
    source_streams: int = 3  # received at once from one device
    max_sending: int = 16  # streams sent at once; more are refused
    chunk_bytes: int = 2 << 20  # of a message
    first_s: float = 1.0  # for all devices to say what they have, before any is chosen
    poll_s: float = 0.3  # other devices are asked this often for what they have by now
    retry_s: float = 1.0  # a device that did not answer is asked again after this
    answer_s: float = 5.0  # a device has to answer a question within this
    stall_s: float = 10.0  # a stream has to bring something within this
    wait_for_peer_s: float = 20.0  # at most this long is waited for what another device is receiving
    give_up_s: float = 60.0  # fetching ends when no device brings anything for so long
    progress_s: float = 0.5  # progress is told this often
