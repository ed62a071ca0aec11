"""How much a model thinks before it answers, as values for its chat template."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def template_values(effort: ReasoningEffort | None) -> dict[str, Any]:
    """Return the values for an effort: templates read one of the two, or neither.

    Templates of Qwen3 and SmolLM3 read `enable_thinking`, those of gpt-oss `reasoning_effort`.
    """
    if effort is None:
        return {}
    return {"enable_thinking": effort != "none", "reasoning_effort": effort}
