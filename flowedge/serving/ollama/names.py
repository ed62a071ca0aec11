"""Names of models as Ollama's clients write them: with a tag."""

from __future__ import annotations

from flowedge.serving.pipelines.pool import PipelinePool

_TAG = ":latest"


def known_name(pool: PipelinePool, model: str) -> str:
    """Return the name that the pool knows for a model's name, which may end with the tag of the newest."""
    known = {name for served in pool.models() for name in (served.name, *served.aliases)}
    bare = model.removesuffix(_TAG)
    return bare if model not in known and bare in known else model
