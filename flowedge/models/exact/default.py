"""The default of the `exact` option: on where exact blocks cost little."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from flowedge.device.kernel_library import missing_reason

ExactOption: TypeAlias = bool | Literal["auto"]

# The kernels always compute exact rows. Without them, docs/exactness.md has the measured costs: from this
# width on, less than 10 % of a layer's time on a CPU at a context of 1,000 and 16 rows. In narrower layers
# attention is most of the work.
LEAST_HIDDEN = 1024
_MEASURED = ("cpu",)  # kinds of devices that the costs were measured on


def resolve_exact(option: ExactOption, config: Any, device_type: str) -> bool:
    """Whether a model's blocks on a kind of device are loaded as exact blocks.

    Args:
        config: the model's transformers config.
        device_type: the type of a torch device.
    """
    if option == "auto":
        is_cheap = not missing_reason() or int(config.hidden_size) >= LEAST_HIDDEN
        return device_type in _MEASURED and is_cheap
    return option
