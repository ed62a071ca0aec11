"""Agents say what they compute on, and compute in the dtype that their pipeline has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble, release
from flowedge.core.errors import BadRequestError
from flowedge.core.sampling import SamplingParams
from flowedge.device.compute import cpu_dtypes, processor_name
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.host.payloads import torch_dtype
from tests.support.breadth import dealt
from tests.support.processes import AgentProcess, FlowEdgeProcess, agents

PROMPT = tuple(range(5, 45))


@pytest.fixture(scope="module")
def three() -> Iterator[list[AgentProcess]]:
    """Three idle agents, whose stages differ in their number of threads."""
    names = ["kitchen", "attic", "cellar"]
    with agents(names[:2], "--threads", "1") as single, agents(names[2:], "--threads", "2") as double:
        yield [*single, *double]


def test_an_agent_says_what_it_computes_on(three: list[AgentProcess]) -> None:
    with Client(three[0].address) as client:
        compute = client.describe().compute
    assert (compute.device, compute.processor, compute.reason) == ("cpu", processor_name(), "")
    assert compute.dtypes == cpu_dtypes()


@pytest.mark.proof
def test_an_agent_with_a_gpu_that_does_not_work_says_why_it_does_not_start() -> None:
    process = FlowEdgeProcess("agent", "--config", "/dev/null", "--no-advertise", "--device", "cuda")
    process.start()
    try:
        assert process.wait(120) == 1
        assert "cuda cannot be used: torch.cuda.is_available() is False; on a Jetson" in process.lines[-1]
    finally:
        process.kill()
        process.remove()


# Most pipelines of tests compute in float32, that of tests/equality/test_half_precision.py in bfloat16. In
# float16 the stages compute for 13 s before they are ready.
@pytest.mark.parametrize("dtype", dealt(["auto", "bfloat16", "float16", "float32"], "auto".__eq__))
def test_a_pipeline_computes_in_its_dtype(three: list[AgentProcess], dtype: str) -> None:
    addresses = [agent.address for agent in three]
    spec = PipelineSpec(
        draft_node=addresses[0], stages=tuple(addresses[1:]), drafter=("bundled",), dtype=dtype
    )
    told: list[tuple[str, str]] = []
    pipeline = assemble(spec, lambda device, text: told.append((device, text)))
    try:
        chosen = cpu_dtypes()[0] if dtype == "auto" else dtype
        for name in ("kitchen", "attic", "cellar"):
            assert (name, f"computes in {chosen} on cpu ({processor_name()})") in told
        with Client(addresses[0]) as client:
            device = client.describe()
            assert (device.dtype, spec.is_served_by(device)) == (chosen, True)
            answer = client.generate(prompt_ids=PROMPT, max_new_tokens=12, seed=1, temperature=0.0).result()
        with Client(addresses[1]) as client:
            stage = client.describe()
        itemsize = torch_dtype(chosen).itemsize
        assert stage.dtype == chosen
        assert stage.weight_bytes < 5_000_000 * itemsize, "four of the eight layers"
        reference = ReferenceModel.load("bundled", dtype=torch_dtype(chosen))
        tolerance = reference.measure_tolerance([*PROMPT, *answer.token_ids]).value
        judged = reference.judge(PROMPT, answer.token_ids, SamplingParams(), tolerance)
        assert judged.passed, judged
    finally:
        release(addresses, pipeline)


def test_a_dtype_that_is_none_is_refused() -> None:
    with pytest.raises(
        BadRequestError, match="dtype is 'float8': input should be 'auto', 'float16', 'bfloat16'"
    ):
        PipelineSpec(draft_node="a:1", stages=("b:1",), dtype="float8")
