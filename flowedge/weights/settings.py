"""Where weights come from, and how they are received and sent."""

from __future__ import annotations

from typing import Annotated, ClassVar

from flowedge.core.settings_group import Seconds, SettingsGroup, checked_by, setting
from flowedge.net.address import checked_address


class WeightsSettings(SettingsGroup):
    """Where weights come from, in this order: the cache, a directory, other devices, the hub."""

    directories: bool = setting(True, "Use the directory of a model where this device has it.")
    hub: bool = setting(False, "Ask the hub for a model that neither this device nor another has.")
    peers: tuple[Annotated[str, checked_by(checked_address)], ...] = setting(
        (), "Agents (host:port) to ask for weights beside the devices of the pipeline."
    )
    streams: int = setting(4, "Tensors received at the same time.", ge=1, le=32)
    max_sending: int = setting(16, "Tensors sent at the same time.", ge=1, le=256)
    stall_s: Seconds = setting(10.0, "A device that sends nothing of a tensor for this long is given up.")
    give_up_s: Seconds = setting(60.0, "Fetching fails when no device sends anything for this long.")

    source_streams: ClassVar[int] = 3  # tensors received at the same time from one device
    chunk_bytes: ClassVar[int] = 2 << 20  # of a message
    first_s: ClassVar[float] = 1.0  # for all devices to say what they have, before any is chosen
    poll_s: ClassVar[float] = 0.3  # between two questions to a device that is receiving weights itself
    retry_s: ClassVar[float] = 1.0  # before a device that did not answer is asked again
    answer_s: ClassVar[float] = 5.0  # for a device to answer a question
    wait_for_peer_s: ClassVar[float] = 20.0  # for a tensor that another device is receiving
    progress_s: ClassVar[float] = 0.5  # between two reports of progress
