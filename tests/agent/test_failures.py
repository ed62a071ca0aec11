"""A stage that is killed, or only stopped, in mid-generation."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import grpc
import pytest

from flowedge import Client
from flowedge.core.errors import BadRequestError, CapacityError, DeviceError, DeviceLostError, FlowEdgeError
from flowedge.core.ids import pipeline_label
from flowedge.network.grpc_status import from_status
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from tests.support.processes import AgentProcess, agents, become_pipeline
from tests.support.stage_config import draft_node_role
from tests.support.waiting import await_that

pytestmark = [pytest.mark.slow]
STAGES = 3
AT_ONCE = {"deadlines": {"recovery_s": 0.0}}  # answers end when a device is lost
PROMPT = "Tell me a long story about the sea."


class Cluster:
    """A draft node and three stages; a stage that has died is replaced."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        names = ["d0", *(f"v{i + 1}" for i in range(STAGES))]
        self.agents: list[AgentProcess] = stack.enter_context(agents(names, settings=AT_ONCE))
        self._pipelines = 0

    @property
    def draft_node(self) -> AgentProcess:
        return self.agents[0]

    def replace(self, index: int) -> None:
        """A fresh agent under a fresh name in the place of one that is dead."""
        name = f"{self.agents[index].name}b"
        (self.agents[index],) = self._stack.enter_context(agents([name], settings=AT_ONCE))

    def set_up(self) -> str:
        """A new pipeline over the agents, in the place of the one before; returns its id."""
        with grpc.insecure_channel(self.draft_node.address) as channel:
            rpc.AgentStub(channel).Release(pb.ReleaseRequest(), timeout=20)
        self._pipelines += 1
        pipeline = f"pipeline{self._pipelines}"
        become_pipeline(self.agents, pipeline=pipeline)
        return pipeline


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        yield Cluster(stack)


def generate_until(cluster: Cluster, victim: int, number: signal.Signals, strategy: str) -> FlowEdgeError:
    """Signal a stage after a few tokens; return the client's error."""
    signalled = False
    with (
        Client(cluster.draft_node.address, timeout_s=120) as client,
        client.generate(PROMPT, strategy=strategy, max_new_tokens=1500, ignore_eos=True) as generation,
    ):
        try:
            for _ in generation:
                if len(generation.token_ids) >= 5 and not signalled:
                    cluster.agents[victim].signal(number)
                    signalled = True
        except FlowEdgeError as error:
            return error
    raise AssertionError("the generation ended well without one of its devices")


CASES = [
    (1, signal.SIGKILL, "auto"),
    (2, signal.SIGSTOP, "flowspec"),
    (2, signal.SIGKILL, "autoregressive"),
    (1, signal.SIGSTOP, "autoregressive"),
    (3, signal.SIGSTOP, "naive_pp"),
    (3, signal.SIGKILL, "flowspec"),
]


@pytest.mark.one_in(6)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("victim", "number", "strategy"), CASES)
def test_the_client_learns_which_device_is_lost(
    cluster: Cluster, victim: int, number: signal.Signals, strategy: str
) -> None:
    cluster.set_up()
    agent = cluster.agents[victim]
    error = generate_until(cluster, victim, number, strategy)
    try:
        # Silence has been noticed, since the client would end with a DeadlineError.
        assert isinstance(error, DeviceLostError)
        assert error.device == agent.name
        for survivor in cluster.agents:
            if survivor is not agent:
                assert survivor.describe().name == survivor.name
                assert survivor.running
        # The pipeline stays broken until it is set up again, and says so at once.
        with pytest.raises(DeviceLostError, match=agent.name), Client(cluster.draft_node.address) as client:
            client.generate(PROMPT).result()
        await_idle(cluster, agent)
    finally:
        if number is signal.SIGSTOP:
            agent.signal(signal.SIGCONT)
        else:
            agent.wait()
            cluster.replace(victim)


def await_idle(cluster: Cluster, lost: AgentProcess) -> None:
    """The survivors give up their part in the broken pipeline, and with it sessions and weights."""
    for survivor in cluster.agents[1:]:
        if survivor is not lost:
            await_that(lambda each=survivor: not each.describe().role, f"{survivor.name} keeps its role")  # type: ignore[misc]


@pytest.mark.timeout(600)
def test_the_same_agents_work_again(cluster: Cluster) -> None:
    """Runs after the others: continued and replaced agents make a pipeline that gives an answer."""
    cluster.set_up()
    with Client(cluster.draft_node.address) as client:
        generation = client.generate(PROMPT, max_new_tokens=20).result()
    assert generation.finish_reason in ("length", "eos")


@pytest.mark.timeout(600)
def test_refusals_are_typed_and_name_the_reason(cluster: Cluster) -> None:
    pipeline = cluster.set_up()
    role = draft_node_role("another", [cluster.agents[2].address])
    with grpc.insecure_channel(cluster.agents[1].address) as channel, pytest.raises(grpc.RpcError) as caught:
        list(rpc.AgentStub(channel).BecomeDraftNode(role, timeout=60))
    refused = from_status(caught.value, "v1")
    assert isinstance(refused, DeviceError)
    assert pipeline_label(pipeline) in str(refused) and pipeline not in str(refused)

    with Client(cluster.draft_node.address) as client:
        with pytest.raises(BadRequestError, match="unknown strategy"):
            run_to_end(client, strategy="magic")
        with pytest.raises(CapacityError, match="shorten the prompt"):
            run_to_end(client, max_new_tokens=10**6)
        with pytest.raises(BadRequestError, match="unknown strategy option"):
            run_to_end(client, strategy_options={"tree_nods": 5})
        with pytest.raises(BadRequestError, match="token"):
            client.generate(prompt_ids=[10**6]).result()
    with Client(cluster.agents[1].address) as client, pytest.raises(DeviceError, match="not a draft node"):
        run_to_end(client)


def run_to_end(client: Client, **options: object) -> None:
    client.generate(PROMPT, **options).result()  # type: ignore[arg-type]
