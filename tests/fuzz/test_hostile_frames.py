"""Frames made to cost memory and time, against a stage that lives: it refuses them at once and works on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flowedge import Client
from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.messages import Fault, Open
from flowedge.protocol import wire
from tests.fuzz.peers import RawStream, mark
from tests.protocol.test_frame_bounds import HOSTILE, body, field
from tests.support.links import RawLink, frame_of
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


def attacks() -> dict[str, list[bytes]]:
    """Return frames by what is hostile in them; of some, many."""
    return {
        **{name: [frame_of(data)] for name, data in HOSTILE.items() if len(data) < 2 * MIB},
        "1 MiB of empty reports": [frame_of(body(4, field(2, b"") * (MIB // 2 - 64)))] * 20,
        "16 MiB of empty reports": [frame_of(HOSTILE["16 MiB of empty reports"])],
        "a tail of 64 MiB": [frame_of(b"", bytes(64 * MIB))],
        "a head of 64 MiB": [frame_of(bytes(64 * MIB))],
        "junk of the largest size": [frame_of(b"", bytes(MIB))] * 20,
    }


def test_hostile_frames_cost_a_stage_neither_memory_nor_time(pipeline: list[AgentProcess]) -> None:
    stage = pipeline[2]

    async def attack() -> None:
        before = peak_bytes(stage)
        stream = RawStream(stage.address, "InBand", PIPELINE)
        for name, messages in attacks().items():
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


def test_frames_that_are_announced_and_never_come_cost_nothing(pipeline: list[AgentProcess]) -> None:
    """Lengths of up to 8 GiB, and then nothing, or a byte now and then."""
    stage = pipeline[2]

    async def attack() -> None:
        before = peak_bytes(stage)
        for lengths in ((0, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (10, MIB), (MIB, 10)):
            async with RawLink(stage.address, pipeline=PIPELINE) as link:
                with contextlib.suppress(ConnectionError):  # lengths beyond the bounds end the link at once
                    await link.write(wire.LENGTHS.pack(*lengths), *[b"x"] * 5)
                assert (peak_bytes(stage) - before) / MIB < GROWTH_MIB

    asyncio.run(asyncio.wait_for(attack(), 120))
    with Client(pipeline[0].address) as client:
        assert client.generate("Hello", max_new_tokens=4).result().token_ids


def test_a_session_beyond_the_models_positions_is_refused(pipeline: list[AgentProcess]) -> None:
    """Options of a strategy asked a stage for 8.3 GiB of cache."""
    stage = pipeline[1]

    async def attack() -> list[Fault]:
        before = peak_bytes(stage)
        async with RawLink(stage.address, pipeline=PIPELINE) as link:
            faults = []
            for number in range(64):
                await link.write(wire.to_bytes(Open(f"s{number}", 1 << 20)))
            while len(faults) < 64:
                reply = await link.read()
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
