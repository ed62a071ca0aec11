"""A member whose frames fall out of step: a wrong length makes the rest of the stream one half-read frame."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from flowedge.client import Client, Recovery
from tests.support.free_ports import free_ports
from tests.support.processes import AgentProcess, running
from tests.support.waiting import await_that

pytestmark = [pytest.mark.timeout(600)]
BRISK = {"deadlines": {"heartbeat_s": 0.2, "silence_s": 3.0, "upstream_silence_s": 3.0, "progress_s": 3000.0}}

# Flips one bit in the length of the first segment of a session "evil...": 64 KiB are missing from then on.
FLIPS = """
import sys
from flowedge.cli.main import main
from flowedge.live.transport import frame_socket
from flowedge.protocol.wire import LENGTHS

def send(self, frame):
    head, tail = LENGTHS.unpack_from(frame.start)
    if flips and b"evil" in bytes(frame.start) and tail > 1000:
        flips.pop()
        frame = frame._replace(start=LENGTHS.pack(head, tail ^ 1 << 16) + bytes(frame.start[LENGTHS.size:]))
    plain_send(self, frame)

flips, plain_send = [1], frame_socket.FrameSocket.send
frame_socket.FrameSocket.send = send
sys.argv[0] = "flowedge"
main()
"""
FAULTY = [sys.executable, "-c", FLIPS]


@pytest.fixture
def draft_node() -> Iterator[AgentProcess]:
    """A draft node that keeps a pipeline, whose first stage is faulty."""
    first = free_ports(2)
    stages = [f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"]
    pipeline = {"model": "bundled", "dtype": "float32", "stages": stages, "look_s": 0.2}
    agents = [
        AgentProcess(
            "v1", "--no-advertise", port=first, settings=BRISK, command=[sys.executable, "-c", FLIPS]
        ),
        AgentProcess("v2", "--no-advertise", port=first + 1, settings=BRISK),
        AgentProcess("d0", "--no-advertise", settings={**BRISK, "pipeline": pipeline}),
    ]
    with running(*agents):
        await_that(lambda: agents[-1].describe().stage_addresses)
        yield agents[-1]


@pytest.mark.proof
def test_a_half_read_frame_is_silence_and_the_pipeline_is_set_up_anew(draft_node: AgentProcess) -> None:
    """Heartbeats of the faulty member go on; they do not count, because they complete no frame."""
    with Client(draft_node.address, timeout_s=300, retries=1) as client:
        before = client.describe().pipeline
        expected = client.generate("Hello", max_new_tokens=8, seed=1).result().token_ids
        lost: list[Recovery | None] = []
        evil = client.generate(
            "Hello", max_new_tokens=8, seed=1, request_id="evil", on_recovering=lost.append
        )
        assert evil.result().token_ids == expected
        assert "no sign of life for 3 s" in str(lost[0])
        assert client.generate("Hello", max_new_tokens=8, seed=1).result().token_ids == expected
        assert client.describe().pipeline not in ("", before)
