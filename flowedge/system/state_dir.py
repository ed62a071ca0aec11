"""The directory of files that outlive a restart of the agent: the device's id and its keys."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from flowedge.core.errors import DeviceError

_DEFAULT = Path("~/.local/state/flowedge")


def state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory, which may not exist yet.

    FLOWEDGE_STATE_DIR, else the first directory of systemd's STATE_DIRECTORY, else ~/.local/state/flowedge.

    Raises:
        DeviceError: when neither variable is set and there is no home directory.
    """
    for named in (
        environment.get("FLOWEDGE_STATE_DIR"),
        environment.get("STATE_DIRECTORY", "").split(":")[0],
    ):
        if named:
            return Path(named)
    try:
        return _DEFAULT.expanduser()
    except RuntimeError as error:
        raise DeviceError(platform.node(), "it has no home directory; set FLOWEDGE_STATE_DIR") from error
