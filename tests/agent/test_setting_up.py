"""A pipeline that is being set up: clients, commands and gateways wait for it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator

import pytest

from flowedge.client import AsyncClient, Client
from flowedge.core.errors import DeviceError, DeviceLostError, PipelineNotReadyError
from flowedge.gateway.config import PoolSettings
from flowedge.gateway.pipelines import member
from flowedge.gateway.pipelines.member import PoolMember
from flowedge.gateway.pipelines.served import PipelineEntry
from tests.gateway.asking import COMPLETIONS, body
from tests.support.free_ports import free_port
from tests.support.gateways import gateway_before
from tests.support.loops import in_loop
from tests.support.processes import CLI, AgentProcess, agents
from tests.support.waiting import await_that

pytestmark = [pytest.mark.timeout(600)]
WAIT_S = 240.0
QUESTION = ("--prompt", "Hi", "--max-new-tokens", "3", "--quiet")


@pytest.fixture
def keeper() -> Iterator[tuple[AgentProcess, AgentProcess]]:
    """A draft node that keeps a pipeline, and its stage, which has not been started."""
    port = free_port()
    stage = AgentProcess("v1", "--no-advertise", port=port)
    pipeline = {"model": "bundled", "stages": [f"127.0.0.1:{port}"], "look_s": 0.2}
    with agents(["d0"], settings={"pipeline": pipeline}) as (draft_node,):
        await_that(lambda: f"127.0.0.1:{port}" in draft_node.describe().not_ready)
        try:
            yield draft_node, stage
        finally:
            stage.stop()
            stage.remove()


def generating(draft_node: AgentProcess, *options: str) -> subprocess.Popen[str]:
    command = [*CLI, "generate", "--peers", draft_node.address, *QUESTION, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_everything_waits_for_a_pipeline_that_its_draft_node_sets_up(
    keeper: tuple[AgentProcess, AgentProcess],
) -> None:
    draft_node, stage = keeper
    with gateway_before(draft_node.address) as gateway, gateway.client() as http:
        for path in ("/health/ready", "/health"):
            assert "its pipeline is being set up: " in http.get(path).json()["reason"]
        refused = http.post(COMPLETIONS, json=body(2))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert int(refused.headers["retry-after"]) > 0
        assert "nothing listens there" in refused.json()["error"]["message"]
        with (
            Client(draft_node.address) as client,
            pytest.raises(PipelineNotReadyError, match="nothing listens"),
        ):
            client.generate("Hi").result()
        with Client(draft_node.address) as client, pytest.raises(PipelineNotReadyError):
            client.status()
        in_vain = generating(draft_node, "--wait", "0.5")
        assert "not ready within 0.5 s" in in_vain.communicate(timeout=WAIT_S)[1]
        assert in_vain.returncode == 1, "a unit is started again, which it is not after 2"
        waiting = generating(draft_node)
        with Client(draft_node.address, retries=1, timeout_s=WAIT_S) as client:
            answer = client.generate("Hi", max_new_tokens=3)
            stage.start()
            assert answer.result().token_ids
            shown, errors = waiting.communicate(timeout=WAIT_S)
            assert waiting.returncode == 0 and shown.strip(), errors
            await_that(lambda: http.get("/health/ready").status_code == 200)
            assert http.post(COMPLETIONS, json=body(2)).status_code == 200
            stage.kill()
            await_that(lambda: "its pipeline is being set up: " in draft_node.describe().not_ready)
            answer = client.generate("Hi", max_new_tokens=3)
            stage.start()
            assert answer.result().token_ids
        with Client(draft_node.address, recovery_s=0) as client:
            answer = client.generate("Hi", max_new_tokens=1500, ignore_eos=True)
            next(answer)
            draft_node.kill()
            with pytest.raises(DeviceLostError) as lost:
                answer.result()
        assert "its agent ended, or its network failed" in str(lost.value)
        assert "flowedge join" not in str(lost.value), "this machine has talked to it"


@in_loop(WAIT_S)
async def test_a_gateway_is_told_that_a_pipeline_is_ready(
    keeper: tuple[AgentProcess, AgentProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    draft_node, stage = keeper
    monkeypatch.setattr(member, "_FIRST_WAIT_S", 3600.0)  # it is not asked a second time
    settings = PoolSettings(ask_s=3600.0, most_ask_s=3600.0)
    async with PoolMember(PipelineEntry(draft_node.address), settings) as watched:
        assert watched.not_ready and not watched.ready
        stage.start()
        async with AsyncClient(draft_node.address) as client:
            await client.await_ready(WAIT_S)
            await client.await_ready(1.0)
        while not watched.ready:  # noqa: ASYNC110 (a test looks from outside)
            await asyncio.sleep(0.02)
        assert not watched.not_ready
    async with AsyncClient(stage.await_address()) as client:
        with pytest.raises(DeviceError, match="not a draft node"):
            await client.await_ready(1.0)
