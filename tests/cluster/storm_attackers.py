"""The attackers of the storm, as processes: each attacks until its input closes, then prints what it did.

Arguments: the JSON of a Target, and the name of an attack, which begins anew whenever it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flowedge.cluster.credentials import Credentials, CredentialStore
from flowedge.cluster.member import authority_name
from flowedge.core.errors import FlowEdgeError
from flowedge.core.messages import Close
from flowedge.protocol import wire
from flowedge.v1 import agent_pb2, agent_pb2_grpc, cluster_pb2, cluster_pb2_grpc, generation_pb2
from flowedge.v1.pipeline_pb2 import LinkOffer, LinkRequest
from flowedge.version import PROTOCOL_VERSION
from tests.cluster.floods import attacker_context, handshake, silent_connections
from tests.cluster.impostor import call_as
from tests.cluster.raw_caller import half_send_many, raw_caller
from tests.discovery.packets import MALFORMED, announcement, sender
from tests.support.links import frame_of, send_frames
from tests.support.stage_config import stage_role

HANDSHAKERS, SILENT = "127.0.0.2", "127.0.0.3"  # addresses that the attackers call from
PAUSE_S = 0.5  # between two attacks of a process
ANSWER_S = 5.0
MIB = 1 << 20


@dataclass(frozen=True)
class Target:
    """What is attacked, and with what.

    Attributes:
        agents: addresses by name. service: address of the enrolment service.
        states: directory of the cluster's members, by name.
        foreign: state directory of a member of another cluster.
        pipeline: its id, which members that are no part of it should not know.
    """

    agents: dict[str, str]
    service: str
    states: str
    foreign: str
    cluster: str
    pipeline: str

    def state(self, name: str) -> Path:
        return Path(self.states) / name

    def credentials(self, name: str) -> Credentials:
        return CredentialStore.open(self.state(name)).credentials

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Attackers:
    """The attacks, each a method that attacks once."""

    def __init__(self, target: Target) -> None:
        self.done: Counter[str] = Counter()
        self._target = target
        self._random = random.Random(15)
        self._stop = threading.Event()

    def run(self, name: str) -> None:
        """Attack by the attack of a name until the input closes."""
        attacking = threading.Thread(target=self._repeat, args=(getattr(self, name),))
        attacking.start()
        sys.stdin.read()
        self._stop.set()
        attacking.join(60)

    def _repeat(self, attack: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                attack()
                outcome = "done"
            except (OSError, EOFError, grpc.RpcError, FlowEdgeError) as error:
                outcome = type(error).__name__
            self.done[f"{attack.__name__}: {outcome}"] += 1
            time.sleep(PAUSE_S)

    def handshakes(self) -> None:
        """Without a certificate, and with a foreign one, to agents and to the CA's service."""
        foreign = CredentialStore.open(Path(self._target.foreign)).member_file
        contexts: list[ssl.SSLContext] = [attacker_context(None), attacker_context(foreign)]
        for address in (*self._target.agents.values(), self._target.service):
            for context in contexts:
                for _ in range(4):
                    with contextlib.suppress(OSError):
                        handshake(address, context, HANDSHAKERS)
                    self.done["handshakes"] += 1

    def silence(self) -> None:
        for address in (*self._target.agents.values(), self._target.service):
            with silent_connections(address, 300, SILENT) as connections:
                self.done["silent connections"] += len(connections)
                time.sleep(1)

    def revoked_half_messages(self) -> None:
        self._half_messages("thief")

    def half_messages(self) -> None:
        self._half_messages("guest")

    def _half_messages(self, name: str) -> None:
        for address in self._target.agents.values():
            for method in ("Agent/BecomeDraftNode", "Generation/Generate", "Weights/Look"):
                with raw_caller(address, self._target.state(name)) as caller:
                    half_send_many(caller, f"/flowedge.v1.{method}", 20, 60 * MIB, patience_s=0.5)
                self.done[f"half messages of {name}"] += 20

    def unread_answers(self) -> None:
        """Answers that the caller leaves no window for."""
        request = generation_pb2.GenerateRequest(
            prompt="Go on.", options=json.dumps({"max_new_tokens": 200, "ignore_eos": True})
        )
        address = self._target.agents["d0"]
        with raw_caller(address, self._target.state("guest"), reply_window=0) as caller:
            for _ in range(64):
                caller.request("/flowedge.v1.Generation/Generate", request.SerializeToString())
            self.done["unread answers"] += 64
            time.sleep(3)

    def watches(self) -> None:
        with self._channel("guest", "d0") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            calls = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=3) for _ in range(512)]
            self.done["watches"] += len(calls)
            time.sleep(2)
            for call in calls:
                call.cancel()

    def multicast(self) -> None:
        with sender() as sending:
            for packet in MALFORMED:
                sending.send(packet)
            for _ in range(20):
                sending.send(self._random.randbytes(self._random.randint(1, 1_400)))
                number = self._random.randrange(1_000_000)
                fields = {
                    "cluster": self._target.cluster,
                    "id": f"fake{number}",
                    "name": f"fake{number}",
                    "kind": "fake",
                    "memory": "1",
                    "protocol": str(PROTOCOL_VERSION),
                    "version": "0",
                }
                sending.send(announcement(f"fake{number}", "127.0.0.1", 9, fields))
            self.done["packets"] += 40 + len(MALFORMED)

    def hostile_agent(self) -> None:
        """Streams into the pipeline, and connections to the port of links."""
        for name in self._target.agents:
            self._stream("garage", name, "InBand")

    def hostile_draft_node(self) -> None:
        for name in self._target.agents:
            self._stream("rival", name, "Express")
            with self._channel("rival", name) as channel:
                agent = agent_pb2_grpc.AgentStub(channel)
                role = stage_role(self._target.pipeline, downstream=self._target.agents["d0"])
                with contextlib.suppress(grpc.RpcError):
                    list(agent.BecomeStage(role, timeout=ANSWER_S))
                with contextlib.suppress(grpc.RpcError):
                    agent.Release(agent_pb2.ReleaseRequest(), timeout=ANSWER_S)
            self.done["takeovers"] += 3

    def hostile_client(self) -> None:
        """Roles, names and options that no honest client sends."""
        with self._channel("guest", "d0") as channel:
            agent = agent_pb2_grpc.AgentStub(channel)
            role = agent_pb2.DraftNodeRole(
                pipeline="p" * 64,
                config="m" * MIB,
                stages=["127.0.0.1:9"] * 200,
                protocol_version=PROTOCOL_VERSION,
            )
            with contextlib.suppress(grpc.RpcError):
                list(agent.BecomeDraftNode(role, timeout=ANSWER_S))
            generate = channel.unary_stream("/flowedge.v1.Generation/Generate")
            for options in ({"lookahead": 1e6}, {"tree_nodes": 1e300}, {"draft_len": float("nan")}):
                for strategy in ("pipeinfer", "flowspec", "pipespec", "auto"):
                    request = generation_pb2.GenerateRequest(
                        prompt="Hello",
                        options=json.dumps(
                            {"max_new_tokens": 4, "strategy": strategy, "strategy_options": options}
                        ),
                    )
                    with contextlib.suppress(grpc.RpcError):
                        list(generate(request.SerializeToString(), timeout=ANSWER_S))
            long = generation_pb2.GenerateRequest(
                prompt="a b " * (200 << 10), options=json.dumps({"max_new_tokens": 1})
            )
            with contextlib.suppress(grpc.RpcError):
                list(generate(long.SerializeToString(), timeout=ANSWER_S))
            self.done["hostile requests"] += 14

    def junk_frames(self) -> None:
        """Frames of millions of empty parts, from a stage that is a member of the pipeline."""
        close = wire.to_head(Close("s1"))
        close.close.reports.add()
        empty = close.SerializeToString()
        frames = [
            empty + empty[2:4] * (MIB // 2),
            b"\x12\xff\xff\xff\x7f" + os.urandom(64 << 10),
            self._random.randbytes(64 << 10),
        ]
        self._stream("v1", "v2", "InBand", [frame_of(frame) for frame in frames])
        self._stream("garage", "d0", "InBand")

    def joins(self) -> None:
        """Guessed tokens, and signing requests that are none."""
        own = self._target.credentials("guest")
        tls = grpc.ssl_channel_credentials(own.authority_pem)
        name = ("grpc.ssl_target_name_override", authority_name(own.cluster_id))
        with grpc.secure_channel(self._target.service, tls, options=[name]) as channel:
            stub = cluster_pb2_grpc.EnrolmentStub(channel)
            for _ in range(10):
                request = cluster_pb2.JoinRequest(
                    secret=self._random.randbytes(24), name="x", signing_request=self._random.randbytes(300)
                )
                with contextlib.suppress(grpc.RpcError):
                    stub.Join(request, timeout=ANSWER_S)
            self.done["guessed tokens"] += 10

    def _stream(self, caller: str, device: str, lane: str, frames: Sequence[bytes] = ()) -> None:
        """Open a link; if it is offered, send frames on it, and bytes without its token beside it."""
        address = self._target.agents[device]
        with self._channel(caller, device) as channel:
            opened: Any = channel.unary_stream(f"/flowedge.v1.Pipeline/{lane}")
            request = LinkRequest(pipeline=self._target.pipeline).SerializeToString()
            with contextlib.suppress(grpc.RpcError):
                for reply in opened(request, timeout=ANSWER_S):
                    offer = LinkOffer.FromString(reply)
                    store = CredentialStore.open(self._target.state(caller))
                    uri = CredentialStore.open(self._target.state(device)).member.uri
                    for token, sent in ((bytes(32), [b"x"]), (offer.token, frames)):
                        with contextlib.suppress(OSError, FlowEdgeError, asyncio.TimeoutError):
                            made = LinkOffer(port=offer.port, token=token)
                            sending = send_frames(address, made, store, uri, sent)
                            asyncio.run(asyncio.wait_for(sending, ANSWER_S))
        self.done["hostile streams"] += 1

    @contextlib.contextmanager
    def _channel(self, caller: str, device: str) -> Iterator[grpc.Channel]:
        server, own = self._target.credentials(device), self._target.credentials(caller)
        with call_as(self._target.agents[device], server, own) as channel:
            yield channel


class AttackProcess:
    """An attack as a process, which is replaced when it has died.

    Attributes:
        deaths: how often that happened.
    """

    def __init__(self, target: Target, name: str) -> None:
        self.name = name
        self.deaths = 0
        self._command = [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "tests.cluster.storm_attackers",
            target.to_json(),
            name,
        ]
        self._process = self._start()

    def replace_if_dead(self) -> None:
        if self._process.poll() is not None:
            self.deaths += 1
            self._process = self._start()

    def end(self) -> Counter[str]:
        """End the attack; return what was done, by kind."""
        output, _ = self._process.communicate(timeout=120)
        return Counter(json.loads(output or "{}"))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


ATTACKS = (
    Attackers.handshakes,
    Attackers.silence,
    Attackers.revoked_half_messages,
    Attackers.half_messages,
    Attackers.unread_answers,
    Attackers.watches,
    Attackers.multicast,
    Attackers.hostile_agent,
    Attackers.hostile_draft_node,
    Attackers.hostile_client,
    Attackers.junk_frames,
    Attackers.joins,
)


@contextlib.contextmanager
def attacked(target: Target, done: Counter[str]) -> Iterator[Callable[[], None]]:
    """Attack in all ways until the context ends; yield a function to call every second.

    done: gets what was done, by kind.
    """
    attacks = [AttackProcess(target, attack.__name__) for attack in ATTACKS]

    def keep_up() -> None:
        for attack in attacks:
            attack.replace_if_dead()

    try:
        yield keep_up
        for attack in attacks:
            done += attack.end()
            done[f"{attack.name}: attackers that died"] += attack.deaths
    finally:
        for attack in attacks:
            attack.kill()


if __name__ == "__main__":
    os.nice(10)  # attackers have machines of their own, and here they share two processors with the attacked
    attackers = Attackers(Target(**json.loads(sys.argv[1])))
    attackers.run(sys.argv[2])
    print(json.dumps(attackers.done))
