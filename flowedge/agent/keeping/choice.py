"""With which devices a pipeline is set up, and again when it has lost one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flowedge.core.errors import DeviceError

FEWER_AFTER_S = 2.5  # a process that its service manager starts again answers by then
SOON_S = 600.0  # a pipeline that is lost so soon after agents were taken in is set up without them
FIRST_PUT_OFF_S, MOST_PUT_OFF_S = 30.0, 600.0
_MOST_DOUBLINGS = 8
_MOST_LOSSES = 16  # of one device
_MOST_PUT_OFF = 256  # agents that are remembered


def stages_again(
    wanted: Sequence[str],
    spares: Sequence[str],
    usable: Collection[str],
    waited_s: float,
    *,
    divided: bool,
    doubtful: Collection[str] = (),
) -> tuple[str, ...] | None:
    """Return the addresses of the stages, in layer order; None where it is better to wait.

    The lost device itself is the best choice, then a spare in its place at once, since a process that is
    started again needs seconds. Then the other stages, among which the layers are divided anew.

    Args:
        wanted: the stages that the pipeline should have.
        spares: devices that may take a place, the best first.
        usable: the devices that answer.
        waited_s: seconds since the device was lost.
        divided: whether the user has divided the layers, so that the number of stages is fixed.
        doubtful: devices that answer and may be lost again at once, taken if the others do not suffice.
    """
    if doubtful:
        steady = [each for each in usable if each not in doubtful]
        without = stages_again(wanted, spares, steady, float("inf"), divided=divided)
        if without is not None:
            return without
    if all(stage in usable for stage in wanted):
        return tuple(wanted)
    free = [spare for spare in dict.fromkeys(spares) if spare in usable and spare not in wanted]
    filled = [stage if stage in usable else free.pop(0) if free else None for stage in wanted]
    left = tuple(stage for stage in filled if stage is not None)
    if len(left) == len(wanted):
        return left
    return left if left and not divided and waited_s >= FEWER_AFTER_S else None


class PutOff:
    """Agents with which a pipeline was not set up, or did not last. They are left out for a growing time."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}  # by address: how many, and until when

    def failed(self, address: str, now: float) -> None:
        failures, until = self._failures.get(address, (0, 0.0))
        count = failures + 1 if now < until + SOON_S else 1
        pause = min(FIRST_PUT_OFF_S * 2 ** min(count - 1, _MOST_DOUBLINGS), MOST_PUT_OFF_S)
        self._failures[address] = count, now + pause
        while len(self._failures) > _MOST_PUT_OFF:
            del self._failures[next(iter(self._failures))]

    def is_put_off(self, address: str, now: float) -> bool:
        return self._failures.get(address, (0, 0.0))[1] > now

    def left_of(self, idle: Sequence[tuple[str, str]], now: float) -> list[tuple[str, str]]:
        """Return the idle agents, each with name and address, that are not put off."""
        return [each for each in idle if not self.is_put_off(each[1], now)]


class RecentLosses:
    """How often each device was lost within the last seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at: dict[str, list[float]] = {}  # by address

    def add(self, address: str, now: float) -> int:
        """Add a loss; return how many there are."""
        recent = [at for at in self._at.pop(address, []) if at > now - self._seconds]
        self._at[address] = [*recent, now][-_MOST_LOSSES:]
        while len(self._at) > _MOST_PUT_OFF:
            del self._at[next(iter(self._at))]
        return len(self._at[address]) if self._seconds else 1


def choose_stages(idle: Sequence[tuple[str, str]], wanted: int, device: str) -> list[str]:
    """Return the addresses of the first `wanted` idle agents by name; of all agents if `wanted` is 0.

    Raises:
        DeviceError: when there are too few.
    """
    if len(idle) < max(wanted, 1):
        raise DeviceError(device, f"{max(wanted, 1)} idle agents are needed as stages, {len(idle)} are found")
    return [address for _, address in sorted(idle)][: wanted or None]
