"""Where weights come from, and how they are received and sent."""

from __future__ import annotations

from typing import Annotated, ClassVar

from flowedge.core.settings_group import Seconds, SettingsGroup, checked_by, setting
from flowedge.network.address import checked_address


class WeightsSettings(SettingsGroup):
    """Where weights come from, in this order: the cache, a directory, other devices, the hub."""

    directories: bool = setting(True, "Read a model from its directory if this device has it.")
    hub: bool = setting(False, "Download models that no device has from the hub.")
    peers: tuple[Annotated[str, checked_by(checked_address)], ...] = setting(
        (), "Agents (host:port) to ask for weights, in addition to the devices of the pipeline."
    )
    streams: int = setting(4, "Maximum number of tensors received at the same time.", ge=1, le=32)
    max_sending: int = setting(16, "Maximum number of tensors sent at the same time.", ge=1, le=256)
    stall_s: Seconds = setting(
        10.0, "A device that sends nothing of a tensor for this long is no longer waited for."
    )
    least_kib_s: float = setting(
        8.0,
        "Minimum KiB/s of a transfer; a device that sends more slowly is not asked for a while.",
        ge=0,
        le=1 << 20,
    )
    give_up_s: Seconds = setting(60.0, "Fetching fails if no device sends anything for this long.")

    source_streams: ClassVar[int] = 3  # tensors received at the same time from one device
    chunk_bytes: ClassVar[int] = 512 << 10  # of a message, which a slow network has to carry within stall_s
    rate_window_s: ClassVar[float] = 20.0  # over which the rate of a tensor is measured
    straggler: ClassVar[float] = 4.0  # a device this many times slower than another gives its tensor to that
    straggler_s: ClassVar[float] = 5.0  # before a device counts as slower
    document_s: ClassVar[float] = 60.0  # for a device to send a list of tensors
    hedge_s: ClassVar[float] = 2.0  # after which a list of tensors is asked of the next device as well
    first_s: ClassVar[float] = 1.0  # for all devices to say what they have, before any is chosen
    poll_s: ClassVar[float] = 0.3  # between two questions to a device that is receiving weights itself
    retry_s: ClassVar[float] = 1.0  # before a device that did not answer is asked again
    answer_s: ClassVar[float] = 5.0  # for a device to answer a question
    wait_for_peer_s: ClassVar[float] = 20.0  # for a tensor that another device is receiving
    progress_s: ClassVar[float] = 0.5  # between two reports of progress

    @property
    def least_bytes_s(self) -> float:
        return 1024 * self.least_kib_s
