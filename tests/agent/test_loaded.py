"""A device with a role has imported what its part of a model computes with, and little beside that."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.breadth import dealt
from tests.support.commands import run_command

MEBIBYTE = 1 << 20
MOST_BESIDE_WEIGHTS = 400 * MEBIBYTE  # 300 MiB of a stage and 315 MiB of a draft node were measured

# Each of them takes 10 to 100 MiB, and half a second to seconds on a computer.
UNUSED = {
    "accelerate",
    "bitsandbytes",
    "pandas",
    "scipy",
    "sklearn",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "transformers.activations",
    "transformers.modeling_utils",
    "transformers.quantizers",
}

ROLE = """
import json, sys
from pathlib import Path
import flowedge.agent.main
from flowedge.models.host.libraries import import_libraries
import_libraries()
from flowedge.agent.agent_config import AgentConfig
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.agent.roles.compute_side import ComputeSide
from flowedge.agent.holding.stage_content import LayerSlice
from flowedge.device.compute import ComputeChoice, DeviceCompute
from flowedge.v1 import agent_pb2 as pb

cpu = DeviceCompute("cpu", ComputeChoice("cpu", "a CPU", ("float32",)))
side = ComputeSide("kitchen", AgentConfig(), cpu)
role, quant, drafter = sys.argv[1:]
config = PipelineConfig(dtype="bfloat16", exact="on", verification="draft-node").changed(quant=quant)
content = LayerSlice(config, 0, 8)
opened = side.open_here(content, "")
if role == "stage":
    held = side.load_stage(content, opened)
    side.stage_spec(held, opened.checkpoint)
else:
    devices = {"a:1": pb.Device(name="a", compute=pb.Compute(device="cpu"))}
    config = config.changed(drafter=drafter, verification="auto")
    request = pb.DraftNodeRole(stages=["a:1"])
    [route] = side.plan_routes(config, request, None, opened.checkpoint, devices)
    held = side.load_draft_models(route, config)
    assert held.encode("Tell me a story.")
lines = Path("/proc/self/status").read_text().splitlines()
[resident] = [int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS")]
print(json.dumps([sorted(sys.modules), resident - held.weight_bytes]))
"""


@pytest.mark.parametrize(
    ("role", "quant", "drafter"),
    dealt(
        [("stage", "int4", ""), ("draft node", "none", "bundled"), ("draft node", "none", "bundled-small")],
        lambda case: case[0] == "stage",
    ),
)
def test_unused_modules_are_not_imported(role: str, quant: str, drafter: str) -> None:
    command = [sys.executable, "-c", ROLE, role, quant, drafter]
    said = run_command(command)
    assert said.returncode == 0, said.stderr
    modules, beside_weights = json.loads(said.stdout.splitlines()[-1])
    assert {"torch", "flowedge.models.decoder_layer"} <= set(modules)
    assert not UNUSED & set(modules)
    assert beside_weights < MOST_BESIDE_WEIGHTS
    print(f"a {role} holds {beside_weights / MEBIBYTE:.0f} MiB beside its weights")
