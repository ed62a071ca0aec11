"""What a bench or a test puts in place of real time and whole links when it runs an agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flowedge.live.compute_thread import ComputeThread
from flowedge.live.route_links import ExpressFault
from flowedge.live.work_timing import RealTime, WorkTiming


@dataclass(frozen=True)
class Instruments:
    """How an agent's work is timed and which express messages are lost; the defaults are the product's.

    Attributes:
        make_timing: makes the timing of a role that is being taken; called on the event loop.
        express_fault: applied to the express messages of a draft node; None for no fault.
    """

    make_timing: Callable[[ComputeThread], WorkTiming] = RealTime
    express_fault: ExpressFault | None = None
