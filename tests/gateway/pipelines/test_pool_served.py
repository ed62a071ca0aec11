"""Several pipelines of one model, and several gateways in front of them."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flowedge.client.assembly import release
from tests.gateway.asking import COMPLETIONS, await_sessions, body
from tests.support.gateways import GatewayProcess
from tests.support.processes import AgentProcess, agents, become_pipeline, running, start_all

WAIT_S = 120.0
POOL = {"pipelines": {"ask_s": 0.2, "most_ask_s": 0.5}}


def pipelines_file(folder: Path, *entries: str) -> str:
    """Write a file of pipelines, each given by its lines; return its path."""
    file = folder / "pipelines.toml"
    file.write_text("\n".join(f"[[pipelines]]\n{entry}" for entry in entries))
    return str(file)


def pipelines_used(gateway: GatewayProcess, number: int) -> list[str]:
    """Return the pipelines that answer so many requests, one after another."""
    with gateway.client() as client:
        answers = [client.post(COMPLETIONS, json=body(2, model="tiny")) for _ in range(number)]
    assert {answer.status_code for answer in answers} == {200}, answers[-1].text
    return [answer.json()["usage"]["flowedge"]["pipeline"] for answer in answers]


def await_used(gateway: GatewayProcess, labels: set[str]) -> None:
    """Wait until these pipelines answer, and no others.

    A gateway that asked a pipeline while it answered another's request takes it for loaded for a while.
    """
    deadline = time.monotonic() + WAIT_S
    while (used := set(pipelines_used(gateway, 4))) != labels:
        assert time.monotonic() < deadline, used


def await_ready(gateway: GatewayProcess, number: int) -> None:
    """Wait until so many pipelines are ready."""
    deadline = time.monotonic() + WAIT_S
    with gateway.client() as client:
        while (models := client.get("/health").json()["models"]) and sum(
            len(model["ready"]) for model in models.values()
        ) != number:
            assert time.monotonic() < deadline, models
            time.sleep(0.05)


def check_that_the_least_loaded_is_taken(
    gateway: GatewayProcess, draft_nodes: dict[str, AgentProcess]
) -> None:
    long = body(1500, model="tiny", stream=True)
    with gateway.client() as client, client.stream("POST", COMPLETIONS, json=long) as held:
        arriving = held.iter_raw()
        next(arriving)
        busy = next(name for name, agent in draft_nodes.items() if agent.describe().sessions)
        await_used(gateway, {*draft_nodes} - {busy})
    await_sessions(draft_nodes[busy].address, 0)


@pytest.mark.proof
def test_two_pipelines_of_a_model_one_of_which_dies(idle_agents: list[AgentProcess], tmp_path: Path) -> None:
    first = idle_agents[:2]
    with agents(["mortal-d0", "mortal-v1"]) as mortal:
        become_pipeline(first)
        file = pipelines_file(
            tmp_path,
            f'name = "tiny"\naliases = ["gpt"]\ndraft_node = "{first[0].address}"\nlabel = "first"',
            f'name = "tiny"\nagents = ["{mortal[0].address}", "{mortal[1].address}"]\nlabel = "second"',
        )
        gateways = [GatewayProcess("--pipelines", file, settings=POOL) for _ in range(2)]
        with running(*gateways):
            for gateway in gateways:
                await_ready(gateway, 2)
                await_used(gateway, {"first", "second"})
            one, other = gateways
            with one.client() as client:
                listed = client.get("/v1/models").json()["data"]
                assert [model["id"] for model in listed] == ["tiny", "gpt"]
                assert client.post(COMPLETIONS, json=body(1, model="gpt")).json()["model"] == "tiny"
            check_that_the_least_loaded_is_taken(one, {"first": first[0], "second": mortal[0]})
            mortal[0].signal(signal.SIGKILL)
            assert set(pipelines_used(one, 4)) == {"first"}, "what has got nothing goes to the other"
            await_ready(one, 1)
            mortal[0].kill()
            mortal[1].stop()
            start_all(mortal)  # idle, at the same addresses
            await_ready(one, 2)
            await_used(one, {"first", "second"})
            one.stop()
            await_ready(other, 2)
            await_used(other, {"first", "second"})


def test_requests_wait_a_while_for_a_pipeline_that_was_lost(tmp_path: Path) -> None:
    with agents(["lost-d0", "lost-v1"]) as lost:
        file = pipelines_file(tmp_path, f'name = "tiny"\nagents = ["{lost[0].address}", "{lost[1].address}"]')
        patient_pool = {"pipelines": {**POOL["pipelines"], "queue_s": 100.0}}
        patient = GatewayProcess("--pipelines", file, settings=patient_pool)
        hasty_pool = {"pipelines": {**POOL["pipelines"], "queue_s": 0.3}}
        hasty = GatewayProcess("--pipelines", file, settings=hasty_pool)
        with running(patient, hasty), patient.client() as client, ThreadPoolExecutor(1) as pool:
            await_ready(patient, 1)
            await_ready(hasty, 1)
            lost[0].kill()
            await_ready(patient, 0)
            await_ready(hasty, 0)
            assert client.get("/health/ready").status_code == 503
            asked = pool.submit(client.post, COMPLETIONS, json=body(4, model="tiny"))
            with hasty.client() as other:
                refused = other.post(COMPLETIONS, json=body(4, model="tiny"))
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_pipeline")
            assert refused.headers["retry-after"]
            assert not asked.done()
            assert patient.samples()["flowedge_gateway_waiting"] == 1
            lost[1].stop()
            start_all(lost)  # idle, at the same addresses
            assert asked.result(WAIT_S).status_code == 200


def test_requests_wait_while_another_pipeline_has_a_device(
    idle_agents: list[AgentProcess], tmp_path: Path
) -> None:
    """As when two gateways set up the same devices: the second is refused them."""
    with agents(["shared-d0", "shared-v1"]) as shared:
        draft_node, stage = shared
        file = pipelines_file(
            tmp_path, f'name = "tiny"\nagents = ["{draft_node.address}", "{stage.address}"]'
        )
        settings = {"pipelines": {**POOL["pipelines"], "queue_s": 100.0}}
        gateway = GatewayProcess("--pipelines", file, settings=settings)
        with running(gateway), gateway.client() as client, ThreadPoolExecutor(1) as pool:
            await_ready(gateway, 1)
            draft_node.kill()
            await_ready(gateway, 0)
            become_pipeline([idle_agents[0], stage], pipeline="other")
            start_all([draft_node])
            deadline = time.monotonic() + WAIT_S
            while "which is alive" not in (health := client.get("/health/ready").text):
                assert time.monotonic() < deadline, health
                time.sleep(0.05)
            asked = pool.submit(client.post, COMPLETIONS, json=body(4, model="tiny"))
            while gateway.samples()["flowedge_gateway_waiting"] != 1 and not asked.done():
                assert time.monotonic() < deadline
            release([idle_agents[0].address, stage.address], "other")
            assert asked.result(WAIT_S).status_code == 200
