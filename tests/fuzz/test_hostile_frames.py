"""Frames made to cost memory and time, against a stage that lives: it refuses them at once and works on."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import psutil
import pytest

from flowedge import Client
from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.messages import PIECE_BYTES, Fault, Open
from flowedge.live.transport.link import PIPELINE_KEY, SERVICE
from flowedge.protocol import wire
from tests.fuzz.peers import RawStream, mark
from tests.protocol.test_frame_bounds import HOSTILE, body, field
from tests.support.processes import AgentProcess, agents, become_pipeline

MIB = 1 << 20
ANSWER_S = 60.0
GROWTH_MIB = 64
PIPELINE = "hostile"


@pytest.fixture(scope="module")
def pipeline() -> Iterator[list[AgentProcess]]:
    with agents(["d0", "v1", "v2"]) as running:
        become_pipeline(running, pipeline=PIPELINE)
        with Client(running[0].address) as client:
            client.generate("Hello", max_new_tokens=4).result()
        yield running


def peak_bytes(agent: AgentProcess) -> int:
    """The most memory that the process has had so far."""
    status = Path(f"/proc/{agent.pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) << 10


def pieces(total: int, data: bytes) -> list[bytes]:
    """The pieces of a frame, with a total that may be a lie."""
    return [
        struct.pack("<BII", 0, total, place) + data[place : place + PIECE_BYTES]
        for place in range(0, len(data), PIECE_BYTES)
    ]


EMPTY_REPORTS = body(4, field(2, b"") * (8 << 20))
ATTACKS = {
    **{name: [data] for name, data in HOSTILE.items() if len(data) < 2 * MIB},
    "1 MiB of empty reports": [body(4, field(2, b"") * (MIB // 2 - 64))] * 20,
    "empty reports in pieces": pieces(len(EMPTY_REPORTS), EMPTY_REPORTS),
    "a frame of 64 MiB in pieces": pieces(64 * MIB, bytes(64 * MIB)),
    "a frame of 4 GiB, announced": pieces(0xFFFFFFFF, bytes(4 * MIB)),
    "the first piece again and again": [pieces(3 * MIB, bytes(PIECE_BYTES))[0]] * 64,
}


def test_hostile_frames_cost_a_stage_neither_memory_nor_time(pipeline: list[AgentProcess]) -> None:
    stage = pipeline[2]

    async def attack() -> None:
        before = peak_bytes(stage)
        stream = RawStream(stage.address, "InBand", PIPELINE)
        for name, messages in ATTACKS.items():
            started, processor = time.monotonic(), psutil.Process(stage.pid).cpu_times()
            for message in messages:
                await stream.write(message)
            await stream.answered(name[:60], mark(name[:60], express=False), ANSWER_S)
            used = psutil.Process(stage.pid).cpu_times()
            grown = (peak_bytes(stage) - before) / MIB
            print(f"{name}: {time.monotonic() - started:.2f} s, peak +{grown:.0f} MiB")
            assert grown < GROWTH_MIB, name
            assert used.user + used.system - processor.user - processor.system < 5.0, name
        await stream.close()

    asyncio.run(asyncio.wait_for(attack(), 300))
    with Client(pipeline[0].address) as client:
        assert client.generate("Hello", max_new_tokens=4).result().token_ids


def test_sixteen_megabytes_in_one_message_end_their_stream(pipeline: list[AgentProcess]) -> None:
    """The frame that took 0.8 to 1.6 GiB when it was parsed."""
    stage = pipeline[2]

    async def attack() -> None:
        before = peak_bytes(stage)
        for _ in range(4):
            options = [("grpc.max_send_message_length", -1)]
            async with grpc.aio.insecure_channel(stage.address, options=options) as channel:
                call = channel.stream_stream(f"/{SERVICE}/InBand")(metadata=((PIPELINE_KEY, PIPELINE),))
                with pytest.raises(grpc.aio.AioRpcError):
                    await call.write(EMPTY_REPORTS)
                    while await call.read() is not grpc.aio.EOF:
                        pass
        assert peak_bytes(stage) - before < GROWTH_MIB * MIB

    asyncio.run(asyncio.wait_for(attack(), 120))
    with Client(pipeline[0].address) as client:
        assert client.generate("Hello", max_new_tokens=4).result().token_ids


def test_a_session_beyond_the_models_positions_is_refused(pipeline: list[AgentProcess]) -> None:
    """Options of a strategy asked a stage for 8.3 GiB of cache."""
    stage = pipeline[1]

    async def attack() -> list[Fault]:
        before = peak_bytes(stage)
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(stage.address, options=options) as channel:
            call = channel.stream_stream(f"/{SERVICE}/InBand")(metadata=((PIPELINE_KEY, PIPELINE),))
            faults = []
            for number in range(64):
                await call.write(wire.encode(Open(f"s{number}", 1 << 20)))
            while len(faults) < 64:
                reply = wire.decode(await call.read())
                if isinstance(reply, Fault):
                    faults.append(reply)
        assert peak_bytes(stage) - before < GROWTH_MIB * MIB
        return faults

    faults = asyncio.run(asyncio.wait_for(attack(), 120))
    assert {fault.code for fault in faults} == {CapacityError.code}
    with Client(pipeline[0].address) as client:
        with pytest.raises(BadRequestError, match="lookahead is 1000000"):
            client.generate("Hello", strategy="pipespec_sync", strategy_options={"lookahead": 1e6}).result()
        assert client.generate("Hello", max_new_tokens=4).result().token_ids
