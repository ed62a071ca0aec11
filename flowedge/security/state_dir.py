"""Where a device keeps what has to outlive its agent."""

from __future__ import annotations

import os
from pathlib import Path


def state_dir() -> Path:
    """FLOWEDGE_STATE_DIR, else what systemd gives a service, else /var/lib/flowedge for root, else the user's."""
    for variable in ("FLOWEDGE_STATE_DIR", "STATE_DIRECTORY"):
        named = os.environ.get(variable, "").partition(":")[0]
        if named:
            return Path(named)
    if os.geteuid() == 0:
        return Path("/var/lib/flowedge")
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "flowedge"
