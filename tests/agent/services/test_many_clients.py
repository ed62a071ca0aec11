"""Eight clients at once over real agents, of which some die in mid-answer and one reads nothing."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flowedge import Client
from flowedge.core.generate_options import GenerateOptions
from flowedge.v1 import generation_pb2
from tests.cluster.raw_caller import raw_caller
from tests.support.processes import AgentProcess, FlowEdgeProcess, agents
from tests.support.stage_config import assembled
from tests.support.waiting import await_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
FREED_S = 30.0
PROMPTS = (
    "Tell me a story.",
    "Tell me a long story about the sea. " * 12,
    "Count to ten.",
    "Why is the sky blue?",
    "Name three birds and say where they live.",
)
OPTIONS = (
    GenerateOptions(strategy="auto", max_new_tokens=60, ignore_eos=True),
    GenerateOptions(strategy="auto", temperature=0.7, seed=3, max_new_tokens=50, ignore_eos=True),
    GenerateOptions(
        strategy="naive_pp", temperature=1.0, top_p=0.9, seed=4, max_new_tokens=45, ignore_eos=True
    ),
    GenerateOptions(
        strategy="autoregressive", top_k=20, temperature=0.9, seed=5, max_new_tokens=40, ignore_eos=True
    ),
    GenerateOptions(strategy="flowspec", max_new_tokens=55, ignore_eos=True),
)
LONG = 1900  # tokens of an answer that does not end by itself in time; the model has 2,048 positions
KILLED = ("auto", "autoregressive")
CLIENT = f"""
import sys
from flowedge import Client
options = dict(max_new_tokens={LONG}, ignore_eos=True, strategy=sys.argv[2])
for chunk in Client(sys.argv[1], timeout_s=200).generate("Tell me of a journey.", **options):
    print("chunk", flush=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[AgentProcess]]:
    """A draft node and two stages, patient with each other and not with callers that read nothing."""
    deadlines = {"silence_s": 100.0, "upstream_silence_s": 100.0, "progress_s": 100.0, "send_s": 100.0}
    settings = {"deadlines": {**deadlines, "read_s": 3.0}, "limits": {"kept_rows": 0}}
    with agents(["many-d0", "many-v1", "many-v2"], settings=settings) as made:
        assembled(made, dtype="float32")
        yield made


def await_zero(agent: AgentProcess, metric: str) -> None:
    await_that(lambda: agent.samples()[metric] == 0, f"{metric} of {agent.name}", FREED_S)


def answers_of(client: Client, *, at_once: bool) -> list[list[int]]:
    """Return the answers to all prompts, asked for one after the other or by a thread each."""
    answers: list[list[int]] = [[] for _ in PROMPTS]

    def ask(index: int) -> None:
        answers[index] = client.generate(PROMPTS[index], options=OPTIONS[index]).result().token_ids

    threads = [threading.Thread(target=ask, args=(index,), daemon=True) for index in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
        if not at_once:
            thread.join(120)
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return answers


@contextmanager
def stopped(agent: AgentProcess) -> Iterator[None]:
    """No answer ends while the context lasts, because an agent is stopped."""
    agent.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        agent.signal(signal.SIGCONT)


def assert_nothing_is_left(cluster: list[AgentProcess]) -> None:
    """By the agents' own counters."""
    for agent in cluster:
        await_zero(agent, "flowedge_sessions")
    for stage in cluster[1:]:
        await_zero(stage, "flowedge_kv_cache_bytes")
        assert stage.describe().cache_bytes == 0
    assert cluster[0].samples()["flowedge_queue_requests"] == 0


@pytest.mark.proof
def test_clients_that_die_harm_no_other_and_leave_nothing(cluster: list[AgentProcess]) -> None:
    address = cluster[0].address
    with Client(address, timeout_s=120) as client:
        alone = answers_of(client, at_once=False)
        assert [len(tokens) for tokens in alone] == [options.max_new_tokens for options in OPTIONS]
        seen = len(cluster[0].lines)
        dying = [
            FlowEdgeProcess(address, strategy, command=[sys.executable, "-c", CLIENT]) for strategy in KILLED
        ]
        unread = generation_pb2.GenerateRequest(
            prompt=PROMPTS[0], options=json.dumps({"max_new_tokens": LONG, "ignore_eos": True})
        )
        found: list[list[list[int]]] = []
        reading = threading.Thread(target=lambda: found.append(answers_of(client, at_once=True)), daemon=True)
        try:
            for process in dying:
                process.start()
            for process in dying:
                process.line("chunk")
            with raw_caller(address, None, reply_window=0, plaintext=True) as caller:
                caller.request("/flowedge.v1.Generation/Generate", unread.SerializeToString())
                with stopped(cluster[2]):
                    reading.start()
                    await_that(
                        lambda: cluster[1].samples()["flowedge_sessions"] == 8, "some are not open", FREED_S
                    )
                for process in dying:
                    process.signal(signal.SIGKILL)
                cluster[0].line("a session has ended", "the caller read no reply", after=seen)
                reading.join(120)
        finally:
            for process in dying:
                process.kill()
                process.remove()
        assert found == [alone]
        assert_nothing_is_left(cluster)
        assert client.generate(PROMPTS[0], options=OPTIONS[0]).result().token_ids == alone[0]
