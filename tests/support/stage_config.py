"""The settings that a draft node gives a stage."""

from __future__ import annotations

from typing import Any

from flowedge.core.pipeline_config import DRAFT_NODE, OFF, PipelineConfig


def stage_config(model: str = "bundled", **changes: Any) -> PipelineConfig:
    """Return the settings of a stage that computes in float32 and draws no tokens, with some changes."""
    config = PipelineConfig(dtype="float32", exact=OFF, verification=DRAFT_NODE)
    return config.changed(model=model, **changes)
