"""The application of a gateway in the process of the test: what it says in HTTP, without sockets."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal

from flowedge.gateway.config import KEYS_FILE, GatewaySettings
from flowedge.gateway.metrics import GatewayMetrics
from flowedge.gateway.pipelines.pool import PipelinePool
from flowedge.gateway.pipelines.served import PipelineEntry
from flowedge.gateway.process import Gateway, make_app
from tests.support.gateways import ServedGateway


class GatewayHere(ServedGateway):
    """A gateway in this process.

    Attributes:
        transport: what httpx hands requests to. An answer that streams is complete when it returns.
    """

    def __init__(self, gateway: Gateway, portal: BlockingPortal) -> None:
        self.url = "http://127.0.0.1"
        self.transport = _Here(gateway, portal)

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, transport=self.transport, **options)


class _Here(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Has a gateway answer on the event loop that its pipelines are watched on."""

    def __init__(self, gateway: Gateway, portal: BlockingPortal) -> None:
        self._application, self._portal = httpx.ASGITransport(make_app(gateway)), portal

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._portal.call(self._answer, request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await asyncio.wrap_future(self._portal.start_task_soon(self._answer, request))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._application.handle_async_request(request)
        content = httpx.ByteStream(await answer.aread())
        return httpx.Response(answer.status_code, headers=answer.headers, stream=content)


@contextmanager
def gateway_here(
    draft_node: str, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[GatewayHere]:
    """A gateway in front of a pipeline.

    Args:
        settings: by section; without a file of keys there are none.
    """
    with tempfile.TemporaryDirectory(prefix="flowedge-gateway-") as state, start_blocking_portal() as portal:
        given = {"access": {"keys_file": Path(state) / KEYS_FILE}, **(settings or {})}
        running = _running(draft_node, GatewaySettings.model_validate(given))
        with portal.wrap_async_context_manager(running) as gateway:
            yield GatewayHere(gateway, portal)


@asynccontextmanager
async def _running(draft_node: str, settings: GatewaySettings) -> AsyncIterator[Gateway]:
    """As the process of a gateway has it."""
    metrics = GatewayMetrics()
    pool = PipelinePool([PipelineEntry(draft_node)], settings.pipelines)
    metrics.watch_pipelines(pool.readings)
    metrics.waiting.set_function(lambda: pool.waiting)
    async with pool:
        yield Gateway(settings, pool, metrics)
