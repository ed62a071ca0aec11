"""100,000 mutated messages against agents that live: no crash, no hang, no growth, and they serve on.

FLOWEDGE_FUZZ_MESSAGES says how many, FLOWEDGE_FUZZ_SEED from which seed; a failure names the message. Each
fifth of them has agents and seeds of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import grpc.aio
import numpy as np
import pytest

from flowedge import Client
from flowedge.core.messages import Close, Message, Segment
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.live.transport.server import InStream
from flowedge.network.grpc_status import ERROR_KEY
from flowedge.protocol import wire
from flowedge.v1 import agent_pb2, generation_pb2, measure_pb2, weights_pb2
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from flowedge.version import PROTOCOL_VERSION
from testbed.tools.slopes import Sample, slope
from tests.fuzz.mutation import Mutator
from tests.fuzz.peers import DEADLINES, FakeStage, Peer, RawStream, mark, serving
from tests.fuzz.seeds import (
    SeedFrame,
    calls,
    express_frames,
    generate_requests,
    result_frames,
    session_frames,
    streamed_calls,
)
from tests.support.blocks import BLOCKS
from tests.support.links import frame_of
from tests.support.processes import LOAD_S, AgentProcess, agents, become_pipeline
from tests.support.stage_config import stage_config

TIMEOUT_S = 590
MESSAGES = int(os.environ.get("FLOWEDGE_FUZZ_MESSAGES", "100000"))
SEED = int(os.environ.get("FLOWEDGE_FUZZ_SEED", "1"))
REPLY_S = 60.0  # every message is answered, or known to be taken, within this
# Bytes that an agent may hold more for each message that it gets; measured were 150, 400, 1,700 and 600. The
# idle one loads models: what a refused load leaves, 1 MiB, is there until the next full collection.
GROWTH = {"first": 1_600, "second": 2_000, "drafting": 6_400, "idle": 1_800}
BATCH = 200
# What share of the messages goes to which agent, in which part of the run.
SHARES = {
    "first": {"in-band, tokens": 0.40},
    "second": {"in-band, hidden states": 0.20, "express": 0.12},
    "idle": {"calls": 0.16, "streamed calls": 0.02},
    "drafting": {"requests": 0.04, "results": 0.06},
}
EXTREME = {
    "deadlines": {**DEADLINES, "keep_alive_s": 0.05, "progress_s": 30.0},
    "limits": {"sessions": 16, "prompt_bytes": 2000, "calls": 2000},
}


class Run:
    """The number of messages that each part of the run has sent, and has still to send."""

    def __init__(self, total: int, seed: int) -> None:
        self.seed = seed
        parts = [part for agent in SHARES.values() for part in agent.items()]
        self._left = {part: int(total * share) + 1 for part, share in parts}
        self.sent: Counter[str] = Counter()

    def more(self, part: str, number: int = 1) -> bool:
        """Takes some of a part's messages; says whether there were any left."""
        if not self.is_open(part):
            return False
        self.sent[part] += number
        return True

    def sent_to(self, agent: str) -> int:
        return sum(self.sent[part] for part in SHARES[agent])

    def is_open(self, part: str) -> bool:
        """Whether there are messages left of a part."""
        return self.sent[part] < self._left[part]


class LinkFuzzer:
    """Lives of sessions on links to one stage, most of whose frames are wrong."""

    def __init__(self, run: Run, part: str, stage: AgentProcess, width: int | None) -> None:
        self._run = run
        self._part = part
        self._stage = stage
        self._width = width
        self._mutator = Mutator(run.seed + zlib.crc32(part.encode()))
        self._lives = 0

    async def in_band(self) -> None:
        """Send all messages of the part, each batch on a new stream: sessions end with their stream."""
        while self._run.is_open(self._part):
            stream = RawStream(self._stage.address, "InBand", "fuzz")
            try:
                for _ in range(20):
                    await self._batch(stream, lambda name: session_frames(name, self._width))
            finally:
                await stream.close()

    async def express(self, stream: RawStream) -> None:
        """Send all messages of the part, on a stream whose end would be the end of the pipeline."""
        while self._run.is_open(self._part):
            await self._batch(stream, express_frames)

    async def _batch(self, stream: RawStream, life: Callable[[str], list[SeedFrame]]) -> None:
        self._lives += 1
        # Names that the other lane has too, if it is about as far.
        lives = [life(f"life{self._lives}-{number}") for number in range(4)]
        together = [frame for frames in zip(*lives, strict=True) for frame in frames]
        for frame in islice(cycle(together), BATCH):
            if self._mutator.random.random() < 0.02:
                if self._run.more(self._part):
                    await stream.write(self._junk())
            elif self._mutator.random.random() < 0.25:
                await stream.write(frame_of(frame.head.SerializeToString(), frame.tail))
            elif self._run.more(self._part):
                await stream.write(self._mutated(frame))
        name = f"mark{self._lives}"
        await stream.answered(name, mark(name, express=life is express_frames), REPLY_S)

    def _mutated(self, frame: SeedFrame) -> bytes:
        head, tail = self._mutator.mutate(frame.head), frame.tail
        if self._mutator.random.random() < 0.1:
            tail = tail[: self._mutator.random.randint(0, len(tail))] or b"x"
        return frame_of(head, tail)

    def _junk(self) -> bytes:
        """A frame of junk, some of which is larger than the stage takes."""
        random = self._mutator.random
        return frame_of(
            random.randbytes(random.choice((0, 1, 50))), bytes(random.choice((0, 1, 100, 8 << 20)))
        )


async def fuzz_calls(run: Run, agent: AgentProcess, downstream: str, worker: int) -> None:
    """Calls of one message, each of which has to be answered; a stream of replies is left after the first."""
    mutator = Mutator(run.seed * 1000 + worker)
    seeds = [(method, message) for method, messages in calls(downstream).items() for message in messages]
    async with grpc.aio.insecure_channel(agent.address) as channel:
        while run.more("calls"):
            method, message = mutator.random.choice(seeds)
            await answered(channel.unary_stream(method)(mutator.mutate(message), timeout=REPLY_S), method)


async def fuzz_streamed_calls(run: Run, agent: AgentProcess) -> None:
    mutator = Mutator(run.seed + 77)
    async with grpc.aio.insecure_channel(agent.address) as channel:
        for method, message in cycle(streamed_calls().items()):
            if not run.more("streamed calls", 5):
                return
            requests = [mutator.mutate(message) for _ in range(5)]
            await answered(channel.stream_stream(method)(iter(requests), timeout=REPLY_S), method)


async def fuzz_requests(run: Run, draft_node: AgentProcess, worker: int) -> None:
    """Requests to generate, right and wrong, whose sessions meet mutated results."""
    mutator = Mutator(run.seed * 2000 + worker)
    method = "/flowedge.v1.Generation/Generate"
    async with grpc.aio.insecure_channel(draft_node.address) as channel:
        while run.is_open("requests") or run.is_open("results"):
            request = mutator.random.choice(generate_requests())
            wrong = mutator.random.random() < 0.7 and run.more("requests")
            data = mutator.mutate(request) if wrong else request.SerializeToString()
            await answered(channel.unary_stream(method)(data, timeout=REPLY_S), method, replies=6)


async def answered(call: Any, method: str, replies: int = 1) -> None:
    """Check that the agent answers in time, with a result or an error."""
    try:
        for _ in range(replies):
            if await call.read() is grpc.aio.EOF:
                return
        call.cancel()
    except grpc.aio.AioRpcError as error:
        # An error of the agent's own is an answer, whatever it says; gRPC's would be that nothing came.
        answer = any(key == ERROR_KEY for key, _ in error.trailing_metadata() or ())
        gone = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        assert answer or error.code() not in gone, f"{method}: {error.details()}"


class LastStage:
    """Answers a draft node's segments with results, many of which are wrong."""

    def __init__(self, run: Run, draft_node: AgentProcess, pipeline: str, width: int) -> None:
        self._run = run
        self._mutator = Mutator(run.seed + 99)
        self._width = width
        self._stream = RawStream(draft_node.address, "InBand", pipeline)
        self._waiting: asyncio.Queue[tuple[InStream, Message]] = asyncio.Queue()
        self.task = asyncio.create_task(self._answer())

    def on_message(self, stream: InStream, message: Message) -> None:
        """See Peer."""
        if isinstance(message, Segment | Close):
            self._waiting.put_nowait((stream, message))

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self._stream.close()

    async def _answer(self) -> None:
        chance = self._mutator.random
        while True:
            _, message = await self._waiting.get()
            session = getattr(message, "session", "")
            if isinstance(message, Segment):
                for _ in range(8):
                    if chance.random() < 0.5 and self._run.more("results"):
                        frame = chance.choice(result_frames(session, self._width))
                        head = self._mutator.mutate(frame.head)
                        await self._stream.write(frame_of(head, frame.tail))
                payload = np.full((message.num_rows, self._width), 0.5, dtype=np.float32)
                message = replace(message, payload=payload)
            await self._stream.write(wire.to_bytes(message))


async def stages(address: str, plan: Sequence[tuple[AgentProcess, int]]) -> None:
    """Makes each agent a stage of one layer in a pipeline of its own, followed by the peer at `address`."""
    for agent, start in plan:
        role = pb.StageRole(
            pipeline="fuzz",
            config=stage_config().to_json(),
            layer_start=start,
            layer_stop=start + 1,
            downstream=address,
            protocol_version=PROTOCOL_VERSION,
        )
        async with grpc.aio.insecure_channel(agent.address) as channel:
            progress = [each async for each in rpc.AgentStub(channel).BecomeStage(role, timeout=LOAD_S)]
            assert progress[-1].ready


async def fuzz(run: Run, running: list[AgentProcess], width: int) -> None:
    """Everything at once; raises what goes wrong."""
    first, second, idle, draft_node = running
    fake, peer, sink = FakeStage(), Peer(), Peer()
    async with serving(sink) as downstream, serving(peer, fake) as stage:
        await stages(downstream, ((first, 0), (second, 1)))
        role = pb.DraftNodeRole(
            pipeline="drafted",
            config=PipelineConfig(drafter="none", dtype="float32").to_json(),
            stages=[stage],
            protocol_version=PROTOCOL_VERSION,
        )
        async with grpc.aio.insecure_channel(draft_node.address) as channel:
            async for progress in rpc.AgentStub(channel).BecomeDraftNode(role, timeout=LOAD_S):
                assert progress.device
        express = RawStream(second.address, "Express", "fuzz")
        last = LastStage(run, draft_node, "drafted", width)
        peer.on_message = last.on_message
        parts: list[Awaitable[None]] = [
            LinkFuzzer(run, "in-band, tokens", first, None).in_band(),
            LinkFuzzer(run, "in-band, hidden states", second, width).in_band(),
            LinkFuzzer(run, "express", second, None).express(express),
            fuzz_streamed_calls(run, idle),
            *(fuzz_calls(run, idle, downstream, worker) for worker in range(8)),
            *(fuzz_requests(run, draft_node, worker) for worker in range(4)),
        ]
        try:
            await asyncio.gather(*parts)
        finally:
            await last.close()
            await express.close()
        await release(running)


async def release(running: list[AgentProcess]) -> None:
    for agent in running:
        async with grpc.aio.insecure_channel(agent.address) as channel:
            await rpc.AgentStub(channel).Release(pb.ReleaseRequest(), timeout=REPLY_S)


async def warm_up(idle: AgentProcess) -> None:
    """Has it import what roles need, for which its time to load may be too short."""
    async with serving(Peer()) as downstream:
        while True:
            try:
                await stages(downstream, ((idle, 0),))
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error
            else:
                return await release([idle])


@contextlib.contextmanager
def fuzzed_agents() -> Iterator[list[AgentProcess]]:
    """Two for stages, one without a role, one for a draft node."""
    shared: dict[str, Any] = {"environment": {"HF_HUB_OFFLINE": "1"}}
    # A role that waits for a next device which is not there should not hold up the others for long.
    impatient = {**EXTREME, "deadlines": {**EXTREME["deadlines"], "load_s": 5.0}}
    with (
        agents(["first", "second", "drafting"], settings=EXTREME, **shared) as others,
        agents(["idle"], settings=impatient, **shared) as idle,
    ):
        timed(lambda: warm_up(idle[0]))
        yield [*others[:2], *idle, others[2]]


def timed(test: Callable[[], Awaitable[None]]) -> float:
    started = time.monotonic()
    asyncio.run(asyncio.wait_for(test(), 580))  # type: ignore[arg-type]
    return time.monotonic() - started


def test_there_are_seeds_for_every_call() -> None:
    modules = (agent_pb2, generation_pb2, measure_pb2, weights_pb2)
    methods = {
        f"/{service.full_name}/{method.name}"
        for module in modules
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert methods == {*calls("here"), *streamed_calls()}


@pytest.mark.proof
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("shard", range(BLOCKS), ids="shard{}".format)
def test_mutated_messages_do_no_harm(shard: int) -> None:
    from flowedge.models.checkpoint.checkpoint import Checkpoint

    width = int(Checkpoint.open("bundled").config.hidden_size)
    messages, seed = MESSAGES // BLOCKS, SEED + 1_000 * shard
    with fuzzed_agents() as running:
        timed(lambda: fuzz(Run(messages // 10, seed), running, width))
        held: dict[str, list[Sample]] = {agent.name: [] for agent in running}
        run = Run(messages, seed)

        async def sampled() -> None:
            fuzzing = asyncio.ensure_future(fuzz(run, running, width))
            while not (await asyncio.wait({fuzzing}, timeout=0.1))[0]:
                for agent in running:
                    held[agent.name].append((run.sent_to(agent.name), agent.resident_bytes()))
            await fuzzing

        seconds = timed(sampled)
        grown = {name: slope(samples) for name, samples in held.items()}
        print(f"{run.sent.total()} messages in {seconds:.1f} s, {dict(run.sent)}; bytes a message: {grown}")
        assert run.sent.total() >= messages
        assert all(agent.running for agent in running), [agent.lines[-20:] for agent in running]
        assert all(grown[name] < limit for name, limit in GROWTH.items()), grown
        become_pipeline([running[3], *running[:3]], pipeline="real")
        with Client(running[3].address) as client:
            assert client.generate("What is a river?", max_new_tokens=8).result().token_ids
        assert not [line for agent in running for line in agent.lines if "internal error" in line]
