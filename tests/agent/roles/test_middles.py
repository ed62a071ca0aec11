"""Middle models in agents of their own: what comes out, what stays behind, and what their death means."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from flowedge.client import Client, Generation
from flowedge.client.assembly import PipelineSpec, assemble, release
from flowedge.core.errors import CheckpointError, DeviceLostError
from flowedge.core.sampling import SamplingParams
from flowedge.models.check.reference import ReferenceModel
from tests.drafting.conftest import save_small_lm
from tests.support.processes import AgentProcess, agents
from tests.support.truncated import first_layers
from tests.support.waiting import await_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PROMPT = "Tell me a long story about the sea."
NEW_TOKENS = 24
RELEASED_S = 60.0


@pytest.fixture(scope="module")
def devices() -> Iterator[list[AgentProcess]]:
    with agents(["d0", "v1", "m1", "m2"], settings={"deadlines": {"recovery_s": 0.0}}) as running:
        yield running


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Directories of a random model, and of the first layers of the bundled model."""
    random = save_small_lm(tmp_path_factory.mktemp("random"), max_position_embeddings=2048)
    return [str(random), str(first_layers(tmp_path_factory.mktemp("cut"), 2))]


def set_up(devices: list[AgentProcess], models: list[str], *, divided: bool = False) -> None:
    """divided: whether the one middle model has both of its devices."""
    agents = [device.address for device in devices[2:]]
    each = [tuple(agents)] if divided else [(agent,) for agent in agents]
    middles = tuple(zip(models, each, strict=False))
    spec = PipelineSpec(
        draft_node=devices[0].address, stages=(devices[1].address,), drafter=("bundled",), middles=middles
    )
    release([devices[0].address], "")
    assemble(spec, lambda *_: None)
    with Client(devices[0].address) as client:
        assert spec.is_served_by(client.describe())


def check_plain(device: AgentProcess, generation: Generation, sampling: SamplingParams) -> None:
    """Hold an answer against the plain model in the dtype that devices of this machine compute in."""
    with Client(device.address) as client:
        dtype = getattr(torch, client.describe().dtype)
    reference = ReferenceModel.load("bundled", dtype=dtype)
    tolerance = reference.measure_tolerance([*generation.prompt_ids, *generation.token_ids]).value
    judged = reference.judge(generation.prompt_ids, generation.token_ids, sampling, tolerance)
    assert judged.passed and judged.checked == NEW_TOKENS, judged


@pytest.mark.proof
def test_the_output_is_the_plain_models_and_the_sessions_end(
    devices: list[AgentProcess], models: list[str]
) -> None:
    set_up(devices, models)
    for sampling in (SamplingParams(), SamplingParams(temperature=1.0, seed=5)):
        with Client(devices[0].address, timeout_s=120) as client:
            generation = client.generate(
                PROMPT,
                strategy="pipespec",
                temperature=sampling.temperature,
                seed=sampling.seed,
                max_new_tokens=NEW_TOKENS,
                ignore_eos=True,
            ).result()
        check_plain(devices[0], generation, sampling)
        statistics = generation.statistics
        assert [used["report"]["device"] for used in statistics["middles"]] == ["m1", "m2"]
        assert all(used["report"]["rows_computed"] > 0 for used in statistics["middles"])
        assert len(statistics["counters"]["rollbacks"]) == 3
    for device in devices[2:]:
        description = device.describe()
        assert description.role == "middle model"
        assert description.weight_bytes > 0
        assert description.cache_bytes == 0, "the session is closed there as well"


@pytest.mark.proof
def test_a_middle_model_is_divided_over_devices(devices: list[AgentProcess], models: list[str]) -> None:
    set_up(devices, models[1:], divided=True)
    described = [device.describe() for device in devices[2:]]
    assert [(each.role, each.layer_start, each.layer_stop) for each in described] == [
        ("middle model", 0, 1),
        ("middle model", 1, 2),
    ]
    with Client(devices[0].address, timeout_s=120) as client:
        generation = client.generate(
            PROMPT, strategy="pipespec", max_new_tokens=NEW_TOKENS, ignore_eos=True
        ).result()
    check_plain(devices[0], generation, SamplingParams())
    used = generation.statistics["middles"]
    assert [each["report"]["device"] for each in used] == ["m1", "m2"]
    assert all(each["report"]["rows_computed"] >= len(generation.prompt_ids) for each in used)


@pytest.mark.proof
def test_another_tokenizer_is_refused_before_anything_is_loaded(
    devices: list[AgentProcess], tmp_path: Path
) -> None:
    other = first_layers(tmp_path / "other", 2)
    tokenizer = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    tokens = {id_: token for token, id_ in vocabulary.items()}
    vocabulary[tokens[300]], vocabulary[tokens[400]] = 400, 300
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"middle model .* has another tokenizer"):
        set_up(devices, [str(other)])
    assert devices[2].describe().role == ""


@pytest.mark.proof
def test_the_client_learns_that_a_middle_model_is_lost(
    devices: list[AgentProcess], models: list[str]
) -> None:
    set_up(devices, models[:1])
    killed = 0.0
    with (
        pytest.raises(DeviceLostError) as lost,
        Client(devices[0].address, timeout_s=120) as client,
        client.generate(PROMPT, strategy="pipespec", max_new_tokens=1500, ignore_eos=True) as generation,
    ):
        for _ in generation:
            if len(generation.token_ids) >= 5 and not killed:
                devices[2].signal(signal.SIGKILL)
                killed = time.monotonic()
    assert lost.value.device == "m1"
    await_that(lambda: not devices[1].describe().role, "the stage is not given up", RELEASED_S)
