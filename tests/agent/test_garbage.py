"""Garbage on the wire gets a typed error; the agent lives on and other sessions are unharmed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import grpc.aio
import numpy as np
import pytest

from flowedge import Client
from flowedge.core.errors import BadRequestError, DeviceError, FlowEdgeError
from flowedge.core.message_limits import MAX_FRAME_BYTES
from flowedge.core.messages import CONTEXT, Close, Credit, Fault, Message, Open, Prune, Segment
from flowedge.network.deadline import within
from flowedge.network.grpc_status import from_status
from flowedge.protocol import wire
from tests.support.links import RawLink, frame_of
from tests.support.loops import in_loop
from tests.support.processes import AgentProcess, agents, become_pipeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
REPLY_S = 60.0
TEST_S = 300.0


@pytest.fixture(scope="module")
def pipeline() -> Iterator[list[AgentProcess]]:
    with agents(["d0", "v1", "v2"]) as running:
        become_pipeline(running, pipeline="test")
        yield running


def segment(**changes: Any) -> Segment:
    """A good first segment of three prompt tokens, but for the changes."""
    rows = np.arange(3, dtype=np.int64)
    good = Segment("g", 0, 0, True, 0, rows, rows - 1, np.array([5, 6, 7], dtype=np.int32))
    return replace(good, **changes)


def draft(**changes: Any) -> Segment:
    """A good segment of a root and its child that follows `segment()`, but for the changes."""
    good = Segment(
        "g", 1, 0, False, 3, np.array([3, 4]), np.array([CONTEXT, 3]), np.array([8, 9], dtype=np.int32)
    )
    return replace(good, **changes)


def prune(**changes: Any) -> Prune:
    return replace(Prune("g", 1, 5, 3, 1, np.array([3, 4])), **changes)


OPEN = Open("g", 64)
GARBAGE: dict[str, Sequence[Message]] = {
    "session that is not open": [segment()],
    "opened twice": [OPEN, OPEN],
    "capacity too large": [Open("g", 1 << 40)],
    "capacity of nothing": [Open("g", 0)],
    "hidden states where tokens belong": [OPEN, segment(payload=np.zeros((3, 8), dtype=np.float32))],
    "floats where tokens belong": [OPEN, segment(payload=np.zeros(3, dtype=np.float32))],
    "token beyond the vocabulary": [OPEN, segment(payload=np.array([1, 2, 10**6], dtype=np.int32))],
    "negative token": [OPEN, segment(payload=np.array([1, -2, 3], dtype=np.int32))],
    "epoch of the future": [OPEN, segment(epoch=7)],
    "rows beyond the capacity": [OPEN, segment(first_row=62)],
    "rows that do not follow": [OPEN, segment(first_row=9)],
    "positions that do not follow": [OPEN, segment(positions=np.array([0, 2, 1]))],
    "parent that is not earlier": [OPEN, segment(), draft(parents=np.array([CONTEXT, 40]))],
    "parent in the context": [OPEN, segment(), draft(parents=np.array([CONTEXT, 1]))],
    "position that is not its parent's plus one": [OPEN, segment(), draft(positions=np.array([3, 9]))],
    "prune of unknown rows": [OPEN, segment(), draft(), prune(retained=np.array([3, 30]))],
    "prune of another context": [OPEN, segment(), draft(), prune(context=2)],
    "prune out of turn": [OPEN, segment(), draft(), prune(epoch=3)],
    "credit from above": [OPEN, Credit("g")],
}


class Stranger(RawLink):
    """A peer that writes any bytes on its own in-band stream."""

    async def fault(self) -> Fault:
        """The next fault among the replies."""

        async def read() -> Fault:
            while True:
                reply = await self.read()
                if isinstance(reply, Fault):
                    return reply

        return await within(REPLY_S, read(), "no fault came back")

    async def refusal(self) -> FlowEdgeError:
        """The error that the stream is ended with."""

        async def read() -> None:
            while await self.call.read() is not grpc.aio.EOF:
                pass
            raise AssertionError("the stream ended well")

        try:
            await within(REPLY_S, read(), "the stream was not ended")
        except grpc.aio.AioRpcError as error:
            return from_status(error, "stranger")
        raise AssertionError("unreachable")


def answer(draft_node: AgentProcess, max_new_tokens: int = 24) -> list[int]:
    with Client(draft_node.address, timeout_s=240) as client:
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "seed": 3, "temperature": 0.7}
        return client.generate("What is a river?", ignore_eos=True, **options).result().token_ids


def test_every_kind_of_garbage_gets_a_fault_and_harms_nobody(pipeline: list[AgentProcess]) -> None:
    expected = answer(pipeline[0], 60)
    got: list[list[int]] = []
    other = threading.Thread(target=lambda: got.append(answer(pipeline[0], 60)))

    async def send_all() -> None:
        async with Stranger(pipeline[1].address) as stranger:
            for index, (what, messages) in enumerate(GARBAGE.items()):
                session = f"garbage{index}"
                renamed = [replace(message, session=session) for message in messages]  # type: ignore[type-var]
                await stranger.write(*(wire.to_bytes(message) for message in renamed))
                fault = await stranger.fault()
                code = "capacity" if what == "capacity too large" else "protocol"
                assert (fault.session, fault.code, fault.device) == (session, code, "v1"), what
                if isinstance(messages[0], Open):
                    await stranger.write(wire.to_bytes(Close(session)))

    other.start()
    asyncio.run(send_all())
    other.join(240)
    assert got == [expected]
    assert answer(pipeline[0]) == expected[:24]


@in_loop(TEST_S)
async def test_bytes_that_are_no_frame_do_not_end_the_stream(pipeline: list[AgentProcess]) -> None:
    head = wire.to_head(segment()).SerializeToString()
    async with Stranger(pipeline[1].address) as stranger:
        await stranger.write(frame_of(b"\xff\xff"), frame_of(b"\x0a\x05abc"), frame_of(head, b"12"))
        faults = [await stranger.fault() for _ in range(3)]
        assert [fault.session for fault in faults] == ["?", "?", "g"]
        assert {fault.code for fault in faults} == {"protocol"}


@in_loop(TEST_S)
async def test_a_session_belongs_to_the_stream_that_opened_it(pipeline: list[AgentProcess]) -> None:
    address = pipeline[1].address
    async with Stranger(address) as owner, Stranger(address) as thief:
        await owner.write(wire.to_bytes(Open("mine", 64)))
        await asyncio.sleep(1)
        for message in (segment(session="mine"), prune(session="mine"), Close("mine")):
            await thief.write(wire.to_bytes(message))
            assert "not opened on this stream" in (await thief.fault()).reason


@in_loop(TEST_S)
async def test_an_oversized_frame_does_not_end_the_stream(pipeline: list[AgentProcess]) -> None:
    async with Stranger(pipeline[1].address) as stranger:
        await stranger.write(frame_of(b"", bytes(2 * MAX_FRAME_BYTES)), frame_of(b"\xff\xff"))
        assert "at most" in (await stranger.fault()).reason
        assert "are not the head of a frame" in (await stranger.fault()).reason


def test_streams_that_have_no_place_are_refused(pipeline: list[AgentProcess]) -> None:
    async def test() -> None:
        cases: list[tuple[AgentProcess, str, str, type[FlowEdgeError]]] = [
            (pipeline[1], "InBand", "no such pipeline", DeviceError),
            (pipeline[1], "Express", "test", BadRequestError),
            (pipeline[0], "InBand", "test", BadRequestError),
            (pipeline[0], "Express", "test", BadRequestError),
        ]
        for agent, method, name, kind in cases:
            async with Stranger(agent.address, method, name) as stranger:
                assert isinstance(await stranger.refusal(), kind)

    asyncio.run(test())
    assert len(answer(pipeline[0])) == 24
    for agent in pipeline:
        assert agent.describe().name == agent.name
