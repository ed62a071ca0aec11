"""Where weights come from, and how they are received and sent."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from flowedge.core.settings_group import Seconds, SettingsGroup, checked_by
from flowedge.net.address import checked_address


class WeightsSettings(SettingsGroup):
    """Where weights come from, in this order: the cache, a directory, other devices, the hub."""

    directories: Annotated[bool, Field(description="Use a model's directory where this device has it.")] = (
        True
    )
    hub: Annotated[bool, Field(description="Ask the hub for a model that no device has.")] = False
    peers: Annotated[
        tuple[Annotated[str, checked_by(checked_address)], ...],
        Field(description="Agents (host:port) to ask for weights beside the devices of the pipeline."),
    ] = ()
    streams: Annotated[int, Field(ge=1, le=32, description="Tensors received at the same time.")] = 4
    max_sending: Annotated[int, Field(ge=1, le=256, description="Tensors sent at the same time.")] = 16
    stall_s: Annotated[
        Seconds, Field(description="A device that sends nothing of a tensor for this long is given up.")
    ] = 10.0
    give_up_s: Annotated[
        Seconds, Field(description="Fetching fails when no device sends anything for this long.")
    ] = 60.0

    source_streams: ClassVar[int] = 3  # tensors received at the same time from one device
    chunk_bytes: ClassVar[int] = 2 << 20  # of a message
    first_s: ClassVar[float] = 1.0  # for all devices to say what they have, before any is chosen
    poll_s: ClassVar[float] = 0.3  # between two questions to a device that is receiving weights itself
    retry_s: ClassVar[float] = 1.0  # before a device that did not answer is asked again
    answer_s: ClassVar[float] = 5.0  # for a device to answer a question
    wait_for_peer_s: ClassVar[float] = 20.0  # for a tensor that another device is receiving
    progress_s: ClassVar[float] = 0.5  # between two reports of progress
