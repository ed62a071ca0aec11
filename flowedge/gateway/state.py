"""The state of one gateway process."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, cast

from fastapi import Depends, Request

from flowedge.gateway.access.gatekeeper import Gatekeeper
from flowedge.gateway.access.keys import KeyFile
from flowedge.gateway.config import GatewaySettings
from flowedge.gateway.errors import SERVER, ApiError, busy
from flowedge.gateway.metrics import GatewayMetrics
from flowedge.gateway.pipelines.pool import PipelinePool

MOST_ASKERS = 1024  # answers whose askers are remembered


class Gateway:
    """What the endpoints work with.

    Attributes:
        keys: finds out who sends a request.
        draining: set when the gateway was told to stop: it takes no new request.
        cut: set when the time for running answers is over.
        started: seconds since 1970.
        running: requests that are being answered.
        idle: set while no request is.
    """

    def __init__(self, settings: GatewaySettings, pipelines: PipelinePool, metrics: GatewayMetrics) -> None:
        """Raises what Gatekeeper does."""
        self.settings, self.pipelines, self.metrics = settings, pipelines, metrics
        access = settings.access
        self.keys = Gatekeeper(access.keys, KeyFile(access.keys_path), local=settings.http.is_local)
        self.draining, self.cut = asyncio.Event(), asyncio.Event()
        self.started = time.time()
        self.running = 0
        # Name of the key by the id of an answer; None where two keys have used the id.
        self._askers: OrderedDict[str, str | None] = OrderedDict()
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def problem(self) -> str:
        """Why no request can be answered now; "" if requests can be."""
        if self.draining.is_set():
            return "the gateway is being stopped"
        return self.pipelines.problem

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count a request as running while the context lasts.

        Raises:
            ApiError: with status 503, when as many run as the settings allow.
        """
        if self.running >= self.settings.limits.requests:
            raise busy("requests")
        self.running += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()

    def note_asker(self, answers: Sequence[str], key: str) -> None:
        """Note the name of the key that asks for answers, by the ids that draft nodes know them by.

        Where no key is needed, everybody may read every answer, and nothing is noted.
        """
        if not self.keys.required:
            return
        for answer in answers:
            self._askers[answer] = key if self._askers.pop(answer, key) == key else None
        while len(self._askers) > MOST_ASKERS:
            self._askers.popitem(last=False)

    def asker_of(self, answer: str) -> str | None:
        """Return the name of the key that has asked for a recent answer; None if that is not known."""
        return self._askers.get(answer)

    def stopping(self) -> ApiError:
        """Return what a request is answered with while the gateway stops."""
        return ApiError(
            503,
            "the gateway is being stopped; ask another, or try again",
            kind=SERVER,
            code="draining",
            retry_after_s=self.settings.deadlines.drain_s,
        )


def gateway_of(request: Request) -> Gateway:
    """Return the gateway that a request came to."""
    return cast(Gateway, request.app.state.gateway)


TheGateway = Annotated[Gateway, Depends(gateway_of)]
"""The type of an endpoint's parameter that is given the gateway."""
