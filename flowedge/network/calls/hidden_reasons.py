"""The errors that a caller is told of instead of errors that say which files and ports exist here."""

from __future__ import annotations

from flowedge.core.errors import (
    CheckpointError,
    DeadlineError,
    DeviceLostError,
    DrainingError,
    FlowEdgeError,
    PeerRefusedError,
)
from flowedge.network.calls.caller import Caller

# The methods by which a caller can have this device open a path or connect to an address of its choice.
METHODS = frozenset(
    {
        "/flowedge.v1.Agent/BecomeDraftNode",
        "/flowedge.v1.Measure/MeasureDevice",
        "/flowedge.v1.Measure/MeasureLink",
    }
)
# An address that refuses at once and one that says nothing get their answer at the same time: after the
# seconds that a device has to answer within.
ANSWER_S = 6.0


def told(method: str, caller: Caller, error: FlowEdgeError) -> FlowEdgeError:
    """Return the error to tell a caller, whatever the reason for the refusal is."""
    if method not in METHODS or caller.may_know:
        return error
    match error:
        case CheckpointError():
            return CheckpointError(
                "the asked device cannot open a model, drafter or tokenizer as it is named; its log says "
                "why. The files of a hub id have to be there: `flowedge models pull OWNER/NAME --hub` on it, "
                "or `flowedge agent --hub`"
            )
        case DrainingError():
            return error
        case DeviceLostError() | PeerRefusedError() | DeadlineError():
            return DeviceLostError(
                "named by the request",
                "not every one answers as an agent of this cluster; the log of the asked device says more",
            )
        case _:
            return error


def pause_s(error: FlowEdgeError, shown: FlowEdgeError, taken_s: float) -> float:
    """Return the seconds to wait before a refusal is sent, given the seconds that the call has taken."""
    hides_address = shown is not error and isinstance(shown, DeviceLostError)
    return max(0.0, ANSWER_S - taken_s) if hides_address else 0.0
