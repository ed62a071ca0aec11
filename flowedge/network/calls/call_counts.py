"""The calls that are going on, counted by caller, and the refusal of a call for which there is no room."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from flowedge.core.errors import CapacityError
from flowedge.core.plain_text import counted
from flowedge.network.calls.caller import Caller
from flowedge.network.calls.method_rules import MethodRule
from flowedge.network.calls.settings import CallLimits

STREAMS = "streams"
_RETRY_S = 1.0  # after which a caller may try again where other calls have to end first


@dataclass(frozen=True)
class CountedCall:
    """A call as it is counted."""

    method: str
    caller: Caller
    rule: MethodRule
    streaming: bool

    @property
    def reserved(self) -> bool:
        """Whether the call may use the reserve of pipelines and admins."""
        return self.caller.is_admin or (self.rule.for_pipelines and self.caller.is_device)

    @property
    def group(self) -> str:
        """The calls of one caller that are counted together."""
        return "calls for pipelines" if self.rule.for_pipelines else "calls"

    @property
    def counters(self) -> tuple[tuple[str, str], ...]:
        """The pairs of a caller, or "" for all clients, and what is counted of it."""
        key = self.caller.key
        streams = ((key, STREAMS),) if self.streaming else ()
        of_clients = () if self.reserved else (("", self.method),)
        return (key, self.group), (key, self.method), *streams, *of_clients


class CallCounts:
    """Counts calls; one caller cannot take the room of others, nor clients that of pipelines and admins."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._total = 0
        self._counts: Counter[tuple[str, str]] = Counter()

    @property
    def total(self) -> int:
        return self._total

    def enter(self, call: CountedCall) -> None:
        """Count a call that begins; `leave` has to be called at its end.

        Raises:
            CapacityError: when there is no room for the call; it is not counted then.
        """
        limits, caller = self._limits, call.caller.key
        if self._counts[caller, call.group] >= limits.calls_per_caller:
            raise CapacityError(
                f"you have {limits.calls_per_caller} {call.group} open here, which is the maximum; end one"
            )
        if call.streaming and self._counts[caller, STREAMS] >= limits.streams_per_peer:
            raise CapacityError(
                f"you have {counted(limits.streams_per_peer, 'stream')} open here, which is the "
                "maximum; close one"
            )
        most = call.rule.per_caller
        if most is not None and self._counts[caller, call.method] >= most:
            method = call.method.removeprefix("/")
            raise _passing(
                f"you have {counted(most, 'call')} of {method} open here, which is the maximum; end one"
            )
        most = call.rule.of_clients
        if most is not None and not call.reserved and self._counts["", call.method] >= most:
            method = call.method.removeprefix("/")
            raise _passing(
                f"clients have {counted(most, 'call')} of {method} open here, which is the maximum; try later"
            )
        if self._total >= self._most(call):
            raise _passing(f"{counted(self._total, 'call')} open here is the maximum; try later")
        self._total += 1
        for counter in call.counters:
            self._counts[counter] += 1

    def leave(self, call: CountedCall) -> None:
        """Take note of the end of a call that was counted."""
        self._total -= 1
        for counter in call.counters:
            self._counts[counter] -= 1
            if not self._counts[counter]:
                del self._counts[counter]

    def _most(self, call: CountedCall) -> int:
        """Return how many calls may be going on for this one to be taken."""
        limits = self._limits
        reserve = min(limits.reserved_calls, limits.calls // 2)
        if call.caller.is_admin:
            return limits.calls
        return limits.calls - (reserve // 4 if call.reserved else reserve)


def _passing(problem: str) -> CapacityError:
    """Return the error for a call for which there is room when others have ended."""
    error = CapacityError(problem)
    error.retry_after_s = _RETRY_S
    return error
