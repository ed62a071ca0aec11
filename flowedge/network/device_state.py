"""In which state a device is that its pipeline has lost, as far as the others can see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from flowedge.core.errors import DeviceError, DeviceLostError, DrainingError


class ConnectResult(str, Enum):
    """What comes of a TCP connection to a device."""

    OPEN = "open"
    REFUSED = "refused"
    SILENT = "silent"
    NO_ROUTE = "no route"


class DeviceState(str, Enum):
    """The state of a lost device; the value is its word in events, logs, metrics and docs."""

    LOST = "lost"
    ENDED = "ended"
    UNREACHABLE = "unreachable"
    FROZEN = "frozen"
    STOPPING = "stopping"
    HALF_CONNECTED = "half-connected"
    SLOW = "slow"
    RESTARTED = "restarted"
    BACK = "back"
    FLAPPING = "flapping"

    def __str__(self) -> str:
        return self.value


# There, but perhaps not for long.
DOUBTFUL = frozenset({DeviceState.HALF_CONNECTED, DeviceState.FLAPPING, DeviceState.SLOW})
AWAY = frozenset({DeviceState.UNREACHABLE, DeviceState.FROZEN})  # no service manager has it back in a second
THERE = frozenset({DeviceState.RESTARTED, DeviceState.BACK})
SLOW_S = 1.0  # of one computation, when nothing has come back for `deadlines.progress_s`
FLAPS = 3  # losses within `deadlines.flapping_s` from which on a device counts as flapping

_WITHOUT_ANSWER = {
    ConnectResult.OPEN: DeviceState.FROZEN,
    ConnectResult.REFUSED: DeviceState.ENDED,
    ConnectResult.SILENT: DeviceState.UNREACHABLE,
    ConnectResult.NO_ROUTE: DeviceState.UNREACHABLE,
}
_SAID = {
    DeviceState.ENDED: "the device answers, but its agent has ended",
    DeviceState.UNREACHABLE: "no answer from the device: it is off, or its cable or network is",
    DeviceState.FROZEN: "it takes connections, but answers no calls: it is frozen or overloaded",
    DeviceState.STOPPING: "it is being stopped, and has handed its work back",
    DeviceState.HALF_CONNECTED: "it answers this device, but its neighbour in the pipeline does not reach it",
    DeviceState.RESTARTED: "its agent has started again",
    DeviceState.BACK: "it answers again",
    DeviceState.SLOW: "it hangs, swaps or is throttled",
    DeviceState.FLAPPING: "it comes and goes, so it is left out for a while if the others suffice",
}


@dataclass(frozen=True)
class Probe:
    """What came of asking a device what it is.

    Attributes:
        instance: of the agent that has answered (see Device.instance); "" without an answer.
        computing_s: seconds for which it has been computing one thing.
    """

    connection: ConnectResult
    instance: str = ""
    computing_s: float = 0.0


@dataclass(frozen=True)
class DeviceLoss:
    """A lost device, as others are told of it.

    Attributes:
        device: its name; reason: of the loss, with what its state means.
    """

    device: str
    state: DeviceState
    reason: str

    def __str__(self) -> str:
        return f"device {self.device}: {self.reason}"


def state_of(
    lost: DeviceError | None, probe: Probe | None, instance: str = "", losses: int = 1
) -> DeviceState:
    """Return the state of a device.

    Args:
        lost: how its pipeline has lost it; None for a device that is only missed beside the lost one.
        probe: what came of asking it since; None if it has not been asked yet.
        instance: of its agent before the loss; "" if that is not known.
        losses: how often it was lost within the time of `deadlines.flapping_s`.
    """
    if isinstance(lost, DrainingError):
        return DeviceState.STOPPING
    stands_still = by_neighbour = False
    if isinstance(lost, DeviceLostError):
        stands_still, by_neighbour = lost.stands_still, lost.by_neighbour
    if probe is None:
        return DeviceState.SLOW if stands_still else DeviceState.LOST
    if not probe.instance:
        return _WITHOUT_ANSWER[probe.connection]
    rules = (
        (losses >= FLAPS, DeviceState.FLAPPING),
        (bool(instance) and probe.instance != instance, DeviceState.RESTARTED),
        (stands_still, DeviceState.SLOW),
        (by_neighbour, DeviceState.HALF_CONNECTED),
    )
    return next((state for holds, state in rules if holds), DeviceState.BACK)


def slowest(probes: Mapping[str, Probe]) -> str:
    """Return the address of the device that keeps a pipeline from going on; "" where none seems to.

    probes: by address, of the devices of a pipeline whose links live, but where nothing comes back.
    """
    longest = max(probes, key=lambda address: probes[address].computing_s, default="")
    return longest if longest and probes[longest].computing_s >= SLOW_S else ""


def loss_of(device: str, state: DeviceState, reason: str) -> DeviceLoss:
    """Return a loss with what its state means, which stands for the reason where it says why.

    reason: how the device was lost; "" where that is not known.
    """
    said = _SAID.get(state, "")
    parts = (said,) if state in _WITHOUT_ANSWER.values() else (reason, said)
    return DeviceLoss(device, state, "; ".join(filter(None, parts)) or "it does not answer")


def without_network(device: str, probes: list[Probe]) -> DeviceLoss | None:
    """Return the loss of a device's own network if it reaches none of several others; None otherwise."""
    away = {ConnectResult.SILENT, ConnectResult.NO_ROUTE}
    if len(probes) < 2 or any(probe.connection not in away for probe in probes):
        return None
    reason = "it reaches none of its devices: look at its own cable and network first"
    return DeviceLoss(device, DeviceState.UNREACHABLE, reason)
