"""Who sent a request, and what it may use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request

from flowedge.core.request import DEFAULT_PRIORITY, Priority
from flowedge.gateway.access.keys import KeyLimits
from flowedge.gateway.access.usage import KeyUsage
from flowedge.gateway.errors import ApiError


class ApiCaller:
    """The sender of a request.

    Attributes:
        name: of the key; "" where none is needed.
        priority: of its requests at the draft node.
        tenant: whose answers the key's drafts are looked up in: those of this key.
    """

    def __init__(
        self,
        name: str = "",
        priority: Priority = DEFAULT_PRIORITY,
        limits: KeyLimits | None = None,
        usage: KeyUsage | None = None,
        tenant: str = "",
    ) -> None:
        """usage: what the key has used so far, shared by its requests; a new count if None."""
        self.name, self.priority, self.tenant = name, priority, tenant
        self.limits = limits or KeyLimits()
        self._usage = usage or KeyUsage()

    def check(self) -> None:
        """Check that the key has tokens left.

        Raises:
            ApiError: with status 429 and the seconds after which there are tokens again.
        """
        self._usage.check_tokens(self.limits, time.monotonic())

    def used(self, tokens: int) -> None:
        """Count tokens of a prompt or an answer."""
        self._usage.add_tokens(tokens, time.monotonic())

    @contextmanager
    def one_request(self) -> Iterator[None]:
        """Count a request, which runs while the context lasts.

        Raises:
            ApiError: with status 429, when the key has no request or no token left, or too many run.
        """
        self._usage.begin(self.limits, time.monotonic())
        try:
            yield
        finally:
            self._usage.end()


def authorised(request: Request) -> ApiCaller:
    """Return the caller of a request; a dependency of each endpoint that needs a key.

    Raises:
        ApiError: with status 401, when a key is needed and none, or a wrong one, was given.
    """
    found: ApiCaller | ApiError = request.state.caller
    if isinstance(found, ApiError):
        raise found
    return found
