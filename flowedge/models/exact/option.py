"""The default of the `exact` option: on where exact blocks cost nothing."""

from __future__ import annotations

from typing import Literal, TypeAlias

from flowedge.device.kernel_library import missing_reason

ExactOption: TypeAlias = bool | Literal["auto"]


def resolve_exact(option: ExactOption, device_type: str) -> bool:
    """Whether blocks on a kind of device are loaded as exact blocks: "auto" where the kernels compute them.

    Args:
        device_type: the type of a torch device.
    """
    if option == "auto":
        return device_type == "cpu" and not missing_reason()
    return option
