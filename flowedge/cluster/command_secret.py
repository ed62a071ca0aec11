"""The secret of a command and the agents that it starts for itself: nobody else may call these agents.

The agents get the secret in their environment, which other users cannot read. Calls carry the secret as
metadata, in plaintext: the agents are on this machine, or in network namespaces of the command.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping
from functools import cache

from flowedge.core.errors import AccessError
from flowedge.network.calls.caller import AnyCaller
from flowedge.network.grpc_handlers import Context

VARIABLE = "FLOWEDGE_COMMAND_SECRET"
METADATA_KEY = "flowedge-command-secret"


@cache
def process_secret() -> str:
    """Return the secret of this process, drawn at the first call."""
    return secrets.token_urlsafe(32)


def given_secret(environment: Mapping[str, str] = os.environ) -> str:
    """Return the secret of the command that has started this process; "" if no command has."""
    return environment.get(VARIABLE, "")


class SecretCheck(AnyCaller):
    """The check of an agent that a command has started for itself."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def check(self, method: str, context: Context) -> None:  # noqa: ARG002
        """Raise AccessError if the call does not carry the secret."""
        shown = dict(context.invocation_metadata() or ()).get(METADATA_KEY, "")
        if not hmac.compare_digest(str(shown).encode(), self._secret):
            raise AccessError(
                "this agent was started by a command for itself and serves no other program; start an "
                "agent of your own: flowedge agent"
            )
