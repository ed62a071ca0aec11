"""The calls that are going on, counted by caller, and the refusal of a call for which there is no room."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from flowedge.core.errors import CapacityError
from flowedge.net.calls.caller import Caller
from flowedge.net.calls.method_rules import MethodRule
from flowedge.net.calls.settings import CallLimits

_STREAMS = "streams"


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
        return self.rule.for_pipelines or self.caller.is_admin

    @property
    def group(self) -> str:
        """The calls of one caller that are counted together."""
        return "calls for pipelines" if self.rule.for_pipelines else "calls"


class CallCounts:
    """Counts calls; one caller cannot take the room of others, nor clients that of pipelines and admins."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._total = 0
        self._of_caller: Counter[tuple[str, str]] = Counter()

    @property
    def total(self) -> int:
        return self._total

    def enter(self, call: CountedCall) -> None:
        """Count a call that begins; `leave` has to be called at its end.

        Raises:
            CapacityError: when there is no room for the call; it is not counted then.
        """
        limits, caller = self._limits, call.caller.key
        if self._of_caller[caller, call.group] >= limits.calls_per_caller:
            raise CapacityError(f"{limits.calls_per_caller} {call.group} of yours are going on here; end one")
        if call.streaming and self._of_caller[caller, _STREAMS] >= limits.streams_per_peer:
            raise CapacityError(
                f"{limits.streams_per_peer} streams of yours are open here already; close one"
            )
        most = call.rule.per_caller
        if most is not None and self._of_caller[caller, call.method] >= most:
            method = call.method.removeprefix("/")
            raise CapacityError(f"{most} calls of {method} by you are going on here already; end one")
        if self._total >= self._most(call):
            raise CapacityError(f"{self._total} calls are going on here already; try later")
        self._total += 1
        for what in self._counters(call):
            self._of_caller[caller, what] += 1

    def leave(self, call: CountedCall) -> None:
        """Take note of the end of a call that was counted."""
        self._total -= 1
        for what in self._counters(call):
            key = call.caller.key, what
            self._of_caller[key] -= 1
            if not self._of_caller[key]:
                del self._of_caller[key]

    def _most(self, call: CountedCall) -> int:
        """Return how many calls may be going on for this one to be taken."""
        limits = self._limits
        reserve = min(limits.reserved_calls, limits.calls // 2)
        if call.caller.is_admin:
            return limits.calls
        return limits.calls - (reserve // 4 if call.reserved else reserve)

    def _counters(self, call: CountedCall) -> list[str]:
        return [call.group, call.method, *([_STREAMS] if call.streaming else [])]
