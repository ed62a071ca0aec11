"""Large inputs do not stop the event loop: heartbeats go on, so no pipeline is lost by them."""

from __future__ import annotations

import asyncio
import random
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowedge.client import Client
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.core.errors import FlowEdgeError, ProtocolError
from flowedge.device.disk_cache.digest import digest_of
from flowedge.weights.manifest import parse_manifest, parse_quantised
from tests.cluster.clusters import Cluster, members
from tests.support.processes import AgentProcess
from tests.support.seams import set_own_security
from tests.support.stage_config import assembled

PROMPT_BYTES = 1 << 18  # the most that an agent takes by default
PROMPTS = 6
LIMITS = {"prompt_bytes": PROMPT_BYTES}
DOCUMENT = 64 << 20
MIB = 1 << 20


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[tuple[Cluster, list[AgentProcess]]]:
    cluster = Cluster(tmp_path, 1)  # its service is off
    states = [cluster.member("d0", CertificateRole.DRAFT_NODE), cluster.member("v1", CertificateRole.AGENT)]
    boss = cluster.security("boss", CertificateRole.ADMIN)
    with pytest.MonkeyPatch.context() as patch, members(states, limits=LIMITS) as running:
        set_own_security(patch, boss)
        assembled(running, drafter=None)
        yield cluster, running


@pytest.mark.proof
@pytest.mark.slow
def test_long_prompts_do_not_lose_the_pipeline(pipeline: tuple[Cluster, list[AgentProcess]]) -> None:
    """Six prompts of the most bytes at once; each keeps the tokenizer busy for a while."""
    cluster, (draft_node, stage) = pipeline
    noise = random.Random(1)
    text = "".join(chr(noise.randrange(33, 127)) for _ in range(PROMPT_BYTES))
    errors: list[str] = []

    def ask(client: Client) -> None:
        try:
            client.generate(text, max_new_tokens=1, strategy="autoregressive").result()
        except FlowEdgeError as error:
            errors.append(error.code)

    with (
        Client(draft_node.address, security=cluster.security("greedy", CertificateRole.CLIENT)) as greedy,
        Client(draft_node.address, security=cluster.security("honest", CertificateRole.CLIENT)) as honest,
    ):
        threads = [threading.Thread(target=ask, args=(greedy,)) for _ in range(PROMPTS)]
        for thread in threads:
            thread.start()
        answer = honest.generate("What is a river?", max_new_tokens=4, strategy="autoregressive").result()
        assert answer.token_ids
        for thread in threads:
            thread.join()
        assert errors == ["context_length"] * PROMPTS  # more tokens than the model takes
        assert honest.generate("And a lake?", max_new_tokens=4, strategy="autoregressive").result().token_ids
    for agent in (draft_node, stage):
        assert not any("link_lost" in line or "the pipeline is broken" in line for line in agent.lines)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "empty lists": lambda: b"[" + b"[]," * (DOCUMENT // 3 - 2) + b"[]]",
    "empty lists as tensors": lambda: b'{"tensors":[' + b"[]," * (DOCUMENT // 3 - 9) + b"[]]}",
    "nested lists": lambda: b"[" * DOCUMENT,
    "nested objects": lambda: b'{"a":' * (DOCUMENT // 5),
    "one long name": lambda: b'{"' + b"a" * (DOCUMENT - 2),
    "one long number": lambda: b"1" * DOCUMENT,
    "many keys": lambda: b"{" + b",".join(b'"%d":1' % number for number in range(1 << 20)) + b"}",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_documents_cost_little_memory(kind: str) -> None:
    """A document of the most bytes is refused at its first wrong value."""
    document = HOSTILE[kind]()
    identity = digest_of(document)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for parse in (parse_manifest, parse_quantised):
        with pytest.raises(ProtocolError, match="is not valid"):
            parse(document, identity)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert grown < 4 * DOCUMENT // MIB  # of copies of the text; the parsed values of the first took 1.5 GiB


def test_reading_a_document_leaves_the_event_loop_free() -> None:
    """A timer of the loop fires while the longest honest list is read in a thread."""
    entry = b'{"bytes":1,"key":"%064x","sha256":"%064x"}'
    document = b"[" + b",".join(entry % (number, number) for number in range(50_000)) + b"]"
    identity = digest_of(document)

    async def read() -> int:
        ticks = 0
        reading = asyncio.ensure_future(asyncio.to_thread(parse_quantised, document, identity))
        while not reading.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert len((await reading).entries) == 50_000
        return ticks

    assert asyncio.run(read()) > 3
