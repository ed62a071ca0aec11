"""The memory that an emulated pipeline takes on each of its devices."""

from __future__ import annotations

from flowedge.device.memory import GIB
from flowedge.planning.memory_fit import draft_node_parts, middle_parts, stage_parts
from flowedge.planning.profile.pipeline import PipelineProfile


def held_gib(pipeline: PipelineProfile, capacity: int, *, drafts: bool) -> dict[str, float]:
    """Return the GiB that each device holds with one session, by its name (d0, v1, ..., m1, ...).

    Args:
        capacity: rows of the session's KV cache.
        drafts: whether there is a drafter on the draft node.
    """
    stored = pipeline.model.stored_bytes
    of_middles = [
        middle_parts(middle, part, stored, capacity)
        for middle in pipeline.middles
        for part in range(len(middle.devices))
    ]
    parts = {
        "d0": draft_node_parts(pipeline, capacity, drafts=drafts),
        **{f"v{stage + 1}": stage_parts(pipeline, stage, capacity) for stage in range(pipeline.num_stages)},
        **{f"m{number}": held for number, held in enumerate(of_middles, start=1)},
    }
    return {place: sum(held.values()) / GIB for place, held in parts.items()}
