"""The secret of a command and the agents that it starts for itself: nobody else may call these agents.

The agents get the secret in their environment, which other users cannot read. Calls carry the secret as
metadata, in plaintext: the agents are on this machine, or in network namespaces of the command.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from functools import cache

VARIABLE = "FLOWEDGE_COMMAND_SECRET"
METADATA_KEY = "flowedge-command-secret"


@cache
def process_secret() -> str:
    """Return the secret of this process, drawn at the first call."""
    return secrets.token_urlsafe(32)


def given_secret(environment: Mapping[str, str] = os.environ) -> str:
    """Return the secret of the command that has started this process; "" if no command has."""
    return environment.get(VARIABLE, "")
