"""The stage of a rehearsal: a process of its own, as on a device, with the product's driver.

The process inherits its connections. It ends when its standard input does, and writes its record then.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.core.errors import FlowEdgeError
from flowedge.device.process import module_command
from flowedge.engine.stage.stage import Stage
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.live.compute_thread import ComputeThread
from flowedge.live.live_stage import LiveStage
from flowedge.live.transport.frame_link import FrameLink, LinkEvents
from flowedge.live.transport.link_connection import LinkConnection
from flowedge.live.work_timing import RealTime
from flowedge.planning.measuring.recorded_work import RecordedJob, RecordedSegment, RecordedWork, serve_stream
from flowedge.planning.measuring.scripted_models import VOCAB, BlankStage
from flowedge.protocol.frame_bounds import CONTROL_BYTES
from flowedge.protocol.link_kind import LinkKind

READY = "ready"
END_S = 10.0  # for the process to write its record


@dataclass(frozen=True)
class StageRecord:
    """What the stage did, in the order in which it ended."""

    jobs: tuple[RecordedJob, ...]
    segments: tuple[RecordedSegment, ...]


class StageProcess:
    """The process, seen from the draft node's; it is ready when this is made."""

    def __init__(self, width: int, dtype: str, forward_s: float, ends: Sequence[socket.socket]) -> None:
        """Start the process.

        Args:
            width, dtype: of the hidden states that it sends; numpy's name of the dtype.
            forward_s: the time of a forward but for its rows.
            ends: its ends of the express link, of the link from the draft node and of the one back to it.

        Raises:
            FlowEdgeError: when it does not start.
        """
        descriptors = [end.fileno() for end in ends]
        arguments = json.dumps([width, dtype, forward_s, descriptors])
        self._process = subprocess.Popen(
            [*module_command("flowedge.planning.measuring.stage_process"), arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != READY:
            self.kill()
            raise FlowEdgeError("the process of a rehearsal's stage did not start")

    def end(self) -> StageRecord:
        """End the process; return its record.

        Raises:
            FlowEdgeError: when it does not end in time.
        """
        try:
            written, _ = self._process.communicate("", END_S)
        except subprocess.TimeoutExpired as error:
            raise FlowEdgeError("the process of a rehearsal's stage did not end") from error
        finally:
            self.kill()
        jobs, segments = json.loads(written)
        return StageRecord(
            tuple(RecordedJob(*each) for each in jobs), tuple(RecordedSegment(*each) for each in segments)
        )

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()


async def _run(width: int, dtype: str, forward_s: float, descriptors: Sequence[int]) -> StageRecord:
    express, inward, outward = (socket.socket(fileno=descriptor) for descriptor in descriptors)
    work = RecordedWork()
    machine = Stage("v1", StageSpec(True, width, VOCAB, dtype))
    stage = LiveStage(
        machine, BlankStage(width, dtype, forward_s), RealTime(ComputeThread("v1")), lambda _: None, work
    )

    async def to_draft_node(events: LinkEvents) -> FrameLink:
        return FrameLink(LinkConnection.over(outward, CONTROL_BYTES), "d0", events, LinkKind.IN_BAND)

    await stage.connect(to_draft_node)
    serve_stream(stage, LinkKind.EXPRESS, "d0", express)
    serve_stream(stage, LinkKind.IN_BAND, "d0", inward)
    print(READY, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    return StageRecord(tuple(work.jobs), tuple(work.segments))


def main() -> None:
    """Be the stage; the argument is what `StageProcess` writes."""
    record = asyncio.run(_run(*json.loads(sys.argv[1])))
    json.dump([record.jobs, record.segments], sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # the links' thread and the compute thread have nothing to end


if __name__ == "__main__":
    main()
