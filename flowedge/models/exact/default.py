"""The default of the `exact` option: on where exact blocks cost little."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

ExactOption: TypeAlias = bool | Literal["auto"]

# docs/exactness.md has the measured costs: from this width on, less than 10 % of a layer's time on a CPU at a
# context of 1,000 and 16 rows. In narrower layers attention is most of the work.
LEAST_HIDDEN = 1024
_MEASURED = ("cpu",)  # kinds of devices that the costs were measured on


def resolve_exact(option: ExactOption, config: Any, device_type: str) -> bool:
    """Whether a model's blocks on a kind of device are loaded as exact blocks.

    Args:
        config: the model's transformers config.
        device_type: the type of a torch device.
    """
    if option == "auto":
        return device_type in _MEASURED and int(config.hidden_size) >= LEAST_HIDDEN
    return option
