"""What a draft node asks of a stage, and a client of a draft node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.core.pipeline_config import DRAFT_NODE, OFF, PipelineConfig
from flowedge.v1 import agent_pb2 as pb
from flowedge.version import PROTOCOL_VERSION
from tests.support.processes import AgentProcess


def stage_config(model: str = "bundled", **changes: Any) -> PipelineConfig:
    """Return the settings of a stage that computes in float32 and draws no tokens, with some changes."""
    config = PipelineConfig(dtype="float32", exact=OFF, verification=DRAFT_NODE)
    return config.changed(model=model, **changes)


def stage_role(pipeline: str, **changes: Any) -> pb.StageRole:
    """Return the request that an agent computes the first layer in a pipeline, with some changes."""
    asked = {"config": stage_config().to_json(), "layer_stop": 1, "protocol_version": PROTOCOL_VERSION}
    return pb.StageRole(pipeline=pipeline, **{**asked, **changes})


def draft_node_role(pipeline: str, stages: Sequence[str]) -> pb.DraftNodeRole:
    """Return the request that an agent leads a pipeline without a drafter over stages."""
    config = PipelineConfig(drafter="none", dtype="float32").to_json()
    return pb.DraftNodeRole(
        pipeline=pipeline, config=config, stages=stages, protocol_version=PROTOCOL_VERSION
    )


def assembled(agents: Sequence[AgentProcess], **spec: Any) -> str:
    """Make the first agent the draft node of the others, in the name of this process.

    spec: fields of the PipelineSpec. Returns the pipeline's id.
    """
    draft_node, *stages = (agent.address for agent in agents)
    made = PipelineSpec(
        **{"draft_node": draft_node, "stages": tuple(stages), "drafter": ("bundled",), **spec}
    )
    return assemble(made, lambda *_: None)
