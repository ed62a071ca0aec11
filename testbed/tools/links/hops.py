"""Measure what a stage adds to a segment beside computing it, over mutual TLS between real processes.

A stage agent holds one layer whose arithmetic is next to nothing. This process is its draft node: it feeds
segments one at a time and collects what the stage hands on. Two times are printed, without the computing that
the stage's timeline tells: in the stage, from the last byte received to the first byte sent; and over both
links, from the feeder's send to the collector's message.

Run: python -m testbed.tools.links.hops
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from flowedge.agent.agent_config import AgentConfig, DeviceSettings
from flowedge.agent.agent_server import agent_server
from flowedge.agent.main import serve
from flowedge.agent.metrics import AgentMetrics
from flowedge.agent.roles.other_agents import meet
from flowedge.cluster import process
from flowedge.cluster.authority import Authority
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.certificates import key_pem, new_key, read_certificate, request_for
from flowedge.cluster.credentials import ClusterInfo, Credentials, CredentialStore
from flowedge.cluster.process import Security
from flowedge.cluster.revocation import read_list
from flowedge.cluster.tls.channels import open_channel
from flowedge.cluster.tls.serving import guard_of
from flowedge.core.errors import DeviceLostError
from flowedge.core.messages import Close, Message, Open, Segment
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.live.timeline import decode as decode_timeline
from flowedge.live.transport.frame_link import LinkEvents
from flowedge.live.transport.frame_socket import FrameSocket
from flowedge.live.transport.link import OutLink
from flowedge.live.transport.listener import LinkListener
from flowedge.live.transport.server import InStream, StreamServer
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.network.link_settings import LinkSettings
from flowedge.protocol import wire
from flowedge.protocol.frame_bounds import FrameError
from flowedge.protocol.link_kind import LinkKind
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from flowedge.version import PROTOCOL_VERSION
from testbed.tools.random_model import TOKENIZER

WIDTH = 4096
ROWS = (1, 16, 64)
PIPELINE = "hops"
SESSION = "hops"
WAIT_S = 30.0
CAPACITY = 4096


def write_model(directory: Path, width: int) -> None:
    """Write a checkpoint of three layers of this width whose matrices are as thin as can be."""
    head, inner, vocab = 8, 8, 64
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=3,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=head,
        vocab_size=vocab,
        max_position_embeddings=1 << 16,
    )
    config.save_pretrained(directory)
    bundled = Checkpoint.open("bundled").directory
    for name in TOKENIZER:
        (directory / name).write_bytes((bundled / name).read_bytes())
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, width),
        "lm_head.weight": (vocab, width),
        "model.norm.weight": (width,),
    }
    for layer in range(3):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (width,),
            f"{prefix}post_attention_layernorm.weight": (width,),
            **{f"{prefix}self_attn.{name}_proj.weight": (head, width) for name in "qkv"},
            f"{prefix}self_attn.o_proj.weight": (width, head),
            f"{prefix}mlp.gate_proj.weight": (inner, width),
            f"{prefix}mlp.up_proj.weight": (inner, width),
            f"{prefix}mlp.down_proj.weight": (width, inner),
        }
    made = torch.Generator().manual_seed(0)
    tensors = {
        name: (torch.randn(shape, generator=made) * 0.02).to(torch.bfloat16) for name, shape in shapes.items()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def make_member(authority: Authority, folder: Path, name: str, role: CertificateRole) -> Path:
    """Return the state directory of a new member of a cluster whose CA nobody serves."""
    now, key = datetime.datetime.now(datetime.timezone.utc), new_key()
    token = authority.new_token(frozenset({role}), datetime.timedelta(minutes=5), ["127.0.0.1:1"], now=now)
    signed = authority.join(token.secret, name, request_for(key), now)
    own = Credentials(
        key_pem(key),
        read_certificate(signed.certificate),
        authority.certificate,
        ClusterInfo("hops", ("127.0.0.1:1",), 2),
    )
    CredentialStore.create(folder / name, own, read_list(signed.revocation_list, authority.certificate))
    return folder / name


@contextmanager
def stage_agent(state: Path) -> Iterator[tuple[str, int]]:
    """Run a stage's agent; yield its address and its process id."""
    command = [sys.executable, "-m", "testbed.tools.links.hops", "--agent", str(state / "times.json")]
    environment = {**os.environ, "FLOWEDGE_STATE_DIR": str(state), "PYTHONUNBUFFERED": "1"}
    log = (state / "agent.log").open("w")
    agent = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert agent.stdout is not None
        line = agent.stdout.readline()
        if "listening on " not in line:
            raise SystemExit(f"the stage did not start: {line}{(state / 'agent.log').read_text()}")
        yield line.split("listening on ")[1].split()[0], agent.pid
    finally:
        agent.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(10)
        agent.kill()
        agent.wait()
        log.close()


class Collector:
    """The draft node's end of the last stage's link: notes when each result has come."""

    def __init__(self) -> None:
        self._came: queue.SimpleQueue[tuple[float, Message]] = queue.SimpleQueue()

    def opened(self, stream: InStream) -> None:
        stream.max_frame_bytes = 8 << 20

    def received(self, stream: InStream, message: Message) -> None:  # noqa: ARG002
        self._came.put((time.monotonic(), message))

    def malformed(self, stream: InStream, error: FrameError) -> None:
        raise SystemExit(f"{stream.peer} sent what cannot be read: {error}")

    def closed(self, stream: InStream, reason: str) -> None:
        """See StreamOwner."""

    def segment(self) -> tuple[float, Segment]:
        """Return the next segment and when it came."""
        while True:
            at, message = self._came.get(timeout=WAIT_S)
            if isinstance(message, Segment):
                return at, message


@dataclass(frozen=True)
class Feeder:
    """The draft node's side of a pipeline of one stage."""

    link: OutLink
    collector: Collector
    address: str
    pid: int

    def feed(self, rows: int, number: int, first: int) -> tuple[float, float]:
        """Send a segment; return when it was sent and when its result came."""
        payload = _payload(rows)
        positions = np.arange(first, first + rows, dtype=np.int64)
        segment = Segment(SESSION, number, 0, True, first, positions, positions - 1, payload)
        started = time.monotonic()
        self.link.send(segment)
        at, _ = self.collector.segment()
        return started, at

    async def computed(self) -> list[tuple[float, float]]:
        """Return start and end of each forward of the stage."""
        async with await open_channel(self.address, LinkSettings().channel_options) as channel:
            reply = await rpc.AgentStub(channel).Timeline(pb.TimelineRequest(session=SESSION))
        events, _ = decode_timeline(reply, "the stage")
        return [(each.start, each.end) for each in events if each.kind in ("forward", "prefill")]


_payloads: dict[int, np.ndarray] = {}


def _payload(rows: int) -> np.ndarray:
    if rows not in _payloads:
        values = np.random.default_rng(0).standard_normal((rows, WIDTH))
        _payloads[rows] = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return _payloads[rows]


@asynccontextmanager
async def pipeline(address: str, pid: int, model: Path, security: Security) -> AsyncIterator[Feeder]:
    """Have the stage load its layer; yield the links into it and out of it."""
    settings, guard, collector, metrics = LinkSettings(), guard_of(security), Collector(), AgentMetrics()
    server = agent_server(AgentConfig(), security, guard)
    port = server.listen("127.0.0.1:0", "lead")
    listener = LinkListener("lead", security.store)
    listener.listen("127.0.0.1", 0)
    streams = StreamServer("lead", lambda *_: collector, settings, listener, metrics)
    server.add_generic_rpc_handlers((streams.handler(),))
    await server.start()
    assert security.store is not None
    own = security.store.credentials.holder.member.uri
    _, members = await meet({address: ""}, settings, own)
    role = pb.StageRole(
        pipeline=PIPELINE,
        layer_start=1,
        layer_stop=2,
        downstream=f"127.0.0.1:{port}",
        protocol_version=PROTOCOL_VERSION,
        config=PipelineConfig(model=str(model), dtype="bfloat16", verification="draft-node").to_json(),
        members=members.neighbours([address])[0],
    )
    links = []
    try:
        async with await open_channel(address, settings.channel_options) as channel:
            async for progress in rpc.AgentStub(channel).BecomeStage(role):
                logging.debug("%s", progress.message)
        for kind in (LinkKind.EXPRESS, LinkKind.IN_BAND):
            link = await OutLink.open(
                address,
                kind,
                pipeline=PIPELINE,
                device="lead",
                events=LinkEvents(lambda _: None, _lost),
                settings=settings,
                member=members.by_address[address],
                observer=metrics,
            )
            links.append(link)
        yield Feeder(links[1], collector, address, pid)
    finally:
        for link in links:
            await link.close()
        await listener.close()
        await server.stop(0.2)


def run_agent(times: Path) -> None:
    """Run the stage's agent; at its end write when the bytes of each segment came and left."""
    came: list[float] = []
    left: list[float] = []
    read, send = wire.read, FrameSocket.send

    def timed_read(head: bytes, tail: bytes | bytearray) -> tuple[Message, float]:
        if tail:
            came.append(time.monotonic())
        return read(head, tail)

    def timed_send(self: FrameSocket, frame: wire.Frame) -> None:
        if frame.tail:
            left.append(time.monotonic())
        send(self, frame)

    wire.read, FrameSocket.send = timed_read, timed_send  # type: ignore[method-assign]
    device = DeviceSettings(host="127.0.0.1", advertise=False)
    serve(AgentConfig(agent=device))
    times.write_text(json.dumps([came, left]), encoding="ascii")


def _lost(error: DeviceLostError) -> None:
    print(f"a link was lost: {error}", file=sys.stderr)


def thread_seconds(pid: int) -> dict[str, float]:
    """Return the CPU seconds of a process by kind of thread."""
    seconds: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            name = "main" if task.name == str(pid) else (task / "comm").read_text().strip()
            used = int((task / "schedstat").read_text().split()[0]) * 1e-9
            seconds[name] = seconds.get(name, 0.0) + used
    return seconds


@dataclass(frozen=True)
class Fed:
    """Segments of so many rows: when each was sent, when its result came, when it was computed, CPU times."""

    rows: int
    spans: list[tuple[float, float]]
    computed: list[tuple[float, float]]
    cpu: str


async def measure(feeder: Feeder, rows: Sequence[int], segments: int) -> list[Fed]:
    capacity = sum(each * (segments + 20) for each in rows)
    feeder.link.send(Open(SESSION, capacity))
    number = first = 0
    fed = []
    for each in rows:
        spans, before = [], {}
        for index in range(segments + 20):
            if index == 20:
                before = thread_seconds(feeder.pid)
            spans.append(await asyncio.to_thread(feeder.feed, each, number, first))
            number, first = number + 1, first + each
            await asyncio.sleep(0.002)
        after = thread_seconds(feeder.pid)
        computed = (await feeder.computed())[-segments:]
        used = {name: 1e3 * (after[name] - before.get(name, 0.0)) / segments for name in after}
        busiest = sorted(used.items(), key=lambda item: -item[1])[:5]
        cpu = ", ".join(f"{name} {value:.2f}" for name, value in busiest if value >= 0.01)
        fed.append(Fed(each, spans[20:], computed, cpu))
    feeder.link.send(Close(SESSION))
    return fed


def report(fed: Sequence[Fed], segments: int, times: Path) -> None:
    """Print a line for each number of rows."""
    inside = list(zip(*json.loads(times.read_text(encoding="ascii")), strict=True))
    print(
        "ms    before computing           after    in the stage      both links   CPU of the stage a segment"
    )
    print(f"rows  {'     min  median' * 4}")
    for place, each in enumerate(fed):
        first = place * (segments + 20) + 20
        computing = [done - begun for begun, done in each.computed]
        shown = []
        steps = inside[first : first + segments]
        before = [begun - came for (came, _), (begun, _) in zip(steps, each.computed, strict=True)]
        after = [left - done for (_, left), (_, done) in zip(steps, each.computed, strict=True)]
        for part in (before, after):
            shown += [1e3 * min(part), 1e3 * float(np.median(part))]
        for spans in (steps, each.spans):
            left = [1e3 * (end - start - spent) for (start, end), spent in zip(spans, computing, strict=True)]
            shown += [min(left), float(np.median(left))]
        columns = "  ".join(f"{value:6.3f}" for value in shown)
        print(f"{each.rows:>4}  {columns}   {each.cpu}; computing {1e3 * float(np.median(computing)):.2f}")


async def run(rows: Sequence[int], segments: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "model").mkdir()
        write_model(folder / "model", WIDTH)
        now = datetime.datetime.now(datetime.timezone.utc)
        authority = Authority.create(folder / "ca", "hops", now=now, addresses=["127.0.0.1:1"], port=1)
        lead = make_member(authority, folder, "lead", CertificateRole.DRAFT_NODE)
        stage = make_member(authority, folder, "stage", CertificateRole.AGENT)
        security = process.use(Security(CredentialStore.open(lead)))
        with stage_agent(stage) as (address, pid):
            async with pipeline(address, pid, folder / "model", security) as feeder:
                fed = await measure(feeder, rows, segments)
        report(fed, segments, stage / "times.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=json.loads, default=list(ROWS))
    parser.add_argument("--segments", type=int, default=200)
    parser.add_argument("--agent", type=Path, help="run the stage's agent, and write its times to this file")
    arguments = parser.parse_args()
    if arguments.agent is not None:
        run_agent(arguments.agent)
        return
    logging.getLogger("flowedge").setLevel(logging.ERROR)
    asyncio.run(run(arguments.rows, arguments.segments))


if __name__ == "__main__":
    main()
