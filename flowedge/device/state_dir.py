"""The directory of files that outlive a restart of the agent: the device's id and its keys."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from flowedge.core.errors import DeviceError

_DEFAULT = Path("~/.local/state/flowedge")
# What device_agents/install.sh makes for the services. Only root and the services' users can open them.
_AGENT = Path("/var/lib/flowedge")
_ENROLMENT = Path("/var/lib/flowedge-enrol")
_AUTHORITY = "authority"  # the folder of a CA


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


def command_states(environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the directories in which commands look for an identity, in this order.

    To root, the directory of the agent's service is the second, so that `sudo flowedge devices` works on a
    board.
    """
    first = state_dir(environment)
    return (first, _AGENT) if _serves(_AGENT, environment) else (first,)


def joining_state(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory for a new identity: to root, that of the agent's service, if it is installed."""
    return _AGENT if _serves(_AGENT, environment) else state_dir(environment)


def authority_state(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of the CA: to root, that of the enrolment service, if it is installed.

    A CA that was made in the usual state directory comes first.
    """
    usual = state_dir(environment)
    return usual if (usual / _AUTHORITY).is_dir() or not _serves(_ENROLMENT, environment) else _ENROLMENT


def _serves(directory: Path, environment: Mapping[str, str]) -> bool:
    """Return whether a service's directory is there, is open to this user, and no variable names another."""
    named = environment.get("FLOWEDGE_STATE_DIR") or environment.get("STATE_DIRECTORY")
    return not named and os.access(directory, os.R_OK | os.W_OK | os.X_OK)
