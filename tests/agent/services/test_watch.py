"""Watching the pipeline of real agents: what is told agrees with the answer, and nobody is slowed down."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import grpc
import pytest

from flowedge.agent.services import pipeline_watch
from flowedge.agent.services.pipeline_watch import (
    MAX_UNREAD,
    MAX_WATCHERS,
    PipelineWatch,
    Watcher,
    token_text,
)
from flowedge.client import AsyncClient, Client
from flowedge.client.activity import PipelineActivity, TreeNode
from flowedge.core.errors import CapacityError, DeviceError, DeviceLostError
from flowedge.engine.work_counts import Load
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.v1 import generation_pb2 as pb
from flowedge.v1 import generation_pb2_grpc as rpc
from tests.support.loops import in_loop
from tests.support.processes import AgentProcess, agents, become_pipeline

PROMPT = "Tell me a long story about the sea."


@pytest.fixture(scope="module")
def draft_node() -> Iterator[AgentProcess]:
    with agents(["d0", "v1", "v2"]) as started:
        become_pipeline(started)
        yield started[0]


class Watching:
    """Collects what a client is told, in a thread, until a session's end is told."""

    def __init__(self, client: Client) -> None:
        self.told: list[PipelineActivity] = []
        self.begun, self.ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(client,))
        self._thread.start()
        assert self.begun.wait(30)

    def _run(self, client: Client) -> None:
        for activity in client.watch():
            self.told.append(activity)
            self.begun.set()
            if any(change.kind == "finished" for change in activity.trees):
                break
        self.ended.set()

    def wait(self) -> None:
        assert self.ended.wait(60)
        self._thread.join(30)

    def nodes(self, kind: str) -> list[TreeNode]:
        return [node for each in self.told for tree in each.trees if tree.kind == kind for node in tree.nodes]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("strategy", ["auto", "flowspec", "autoregressive"])
def test_what_is_told_agrees_with_the_answer_and_its_statistics(
    draft_node: AgentProcess, strategy: str
) -> None:
    with Client(draft_node.address) as client:
        watching = Watching(client)
        answer = client.generate(PROMPT, max_new_tokens=40, ignore_eos=True, strategy=strategy).result()
        watching.wait()
    told, statistics = watching.told, answer.statistics
    assert told[0].state is not None
    assert not any(each.incomplete for each in told)
    accepted = watching.nodes("accepted")
    assert len(accepted) == statistics["new_tokens"] == 40
    assert [node.parent for node in accepted] == [-1, *(node.number for node in accepted[:-1])]
    assert "".join(node.text for node in accepted).strip() == answer.text.strip()
    everything = [each for activity in told for each in activity.computed]
    computed = [each for each in everything if each.session == answer.session]
    first = statistics["stages"][0]["report"]
    committed = [each.rows for each in computed if each.device == first["device"] and each.kind != "verify"]
    # Statistics count rows that a prune took out of the outbox as sent, and not those of aborted segments.
    arrived = first["rows_computed"] + first["rows_trimmed"] - sum(committed)
    assert arrived <= len(watching.nodes("sent")) <= statistics["counters"]["draft_rows_sent"]
    names = [statistics["draft_node"]["report"]["device"]]
    # The draft node may have been drafting yet for the question before.
    assert {each.device for each in everything if each.session != answer.session} <= set(names)
    names += [stage["report"]["device"] for stage in statistics["stages"]]
    for stage in statistics["stages"]:
        of_stage = [each for each in computed if each.device == stage["report"]["device"]]
        assert 0 < len(of_stage) <= stage["report"]["segments"]
        kinds = {each.kind for each in of_stage}
        assert "prefill" in kinds
        assert ("verify" in kinds) == (strategy != "autoregressive")
    states = [each.state for each in told if each.state is not None]
    assert all(0 <= state.running <= 1 and state.waiting == 0 for state in states)
    assert [link.sender for link in states[0].links] == names
    assert [link.receiver for link in states[0].links] == [*names[1:], names[0]]


def test_a_watcher_that_does_not_read_slows_nobody_down(draft_node: AgentProcess) -> None:
    with grpc.insecure_channel(draft_node.address) as channel, Client(draft_node.address) as client:
        plain = client.generate(PROMPT, max_new_tokens=64, ignore_eos=True, seed=1).result()
        unread = rpc.GenerationStub(channel).Watch(pb.WatchRequest())
        next(unread)
        watched = client.generate(PROMPT, max_new_tokens=64, ignore_eos=True, seed=1).result()
        unread.cancel()
    assert watched.token_ids == plain.token_ids


def test_messages_beyond_the_limit_are_dropped_and_the_next_one_says_so() -> None:
    async def read() -> list[bool]:
        watcher = Watcher()
        for number in range(MAX_UNREAD + 5):
            watcher.offer(pb.PipelineActivity(now=number))
        got = [await watcher.next() for _ in range(MAX_UNREAD)]
        watcher.offer(pb.PipelineActivity(now=99))
        got.append(await watcher.next())
        return [message.incomplete for message in got if message is not None]

    assert asyncio.run(read()) == [False] * MAX_UNREAD + [True]


def test_an_idle_pipeline_tells_its_state_with_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the moments are at which a state would be due."""

    async def read() -> list[bool]:
        live = SimpleNamespace(row_bytes=1, num_running=0, load=Load, alive=True)
        live.begin_notes = live.end_notes = lambda notes: None
        role = SimpleNamespace(stage_names=["v1"], in_use=True)
        with PipelineWatch("d0", role, live, str).watcher() as watcher:  # type: ignore[arg-type]
            told = [await watcher.next() for _ in range(6)]
        return [message is not None and message.HasField("state") for message in told]

    for name, seconds in (("PERIOD_S", 0.004), ("STATE_S", 0.01), ("SILENT_S", 0.02)):
        monkeypatch.setattr(pipeline_watch, name, seconds)
    assert asyncio.run(read()) == [True] * 6


@in_loop(120.0)
async def test_only_a_few_may_watch(draft_node: AgentProcess) -> None:
    async with AsyncClient(draft_node.address) as one, AsyncClient(draft_node.address) as other:
        watches = [one.watch() for _ in range(MAX_WATCHERS)]
        for each in watches:
            assert (await anext(each)).state is not None
        with pytest.raises(CapacityError):
            await anext(other.watch())
        for each in watches:
            await each.aclose()  # type: ignore[attr-defined]
        deadline = time.monotonic() + 30
        while True:  # until the agent has noticed
            try:
                assert (await anext(other.watch())).state is not None
                return
            except CapacityError:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)


def test_a_watch_ends_with_the_pipeline_and_needs_one() -> None:
    with agents(["d0", "v1"]) as started:
        with Client(started[0].address) as client, pytest.raises(DeviceError, match="not a draft node"):
            next(client.watch())
        become_pipeline(started)
        with Client(started[0].address) as client:
            watch = client.watch()
            assert next(watch).state is not None
            started[1].kill()
            with pytest.raises(DeviceLostError, match="before the watch was ended"):
                for _ in watch:
                    pass


def test_special_tokens_are_no_text_of_an_answer() -> None:
    tokenizer = load_tokenizer(Checkpoint.open("bundled"))
    text_of = token_text(SimpleNamespace(tokenizer=tokenizer))  # type: ignore[arg-type]
    ids = tokenizer("def add(a, b):", add_special_tokens=False)["input_ids"]
    assert "".join(text_of(token) for token in [*ids, tokenizer.eos_token_id]).strip() == "def add(a, b):"
