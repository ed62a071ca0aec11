"""The process of a gateway: it listens, tells systemd, and drains when it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import platform
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

import uvicorn
from fastapi import APIRouter, FastAPI
from starlette.middleware.cors import CORSMiddleware

from flowedge.agent.signals import Signals
from flowedge.cluster.certificates import utc_now
from flowedge.cluster.enrolment import refresh_credentials
from flowedge.cluster.process import current
from flowedge.core.errors import BadRequestError
from flowedge.core.log_fields import about
from flowedge.device.process import raise_descriptor_limit
from flowedge.device.sd_notify import READY, STOPPING, WATCHDOG, Notifier
from flowedge.gateway import ollama, openai, openapi, status_routes
from flowedge.gateway.access.gatekeeper import Gatekeeper
from flowedge.gateway.access.keys import KeyFile
from flowedge.gateway.answers.answer_request import IGNORED, SYSTEM
from flowedge.gateway.answers.joinable_answers import JOINED
from flowedge.gateway.config import GatewaySettings, ListenSettings
from flowedge.gateway.connections import ConnectionTable
from flowedge.gateway.endpoints import EndpointNames
from flowedge.gateway.errors import add_handlers
from flowedge.gateway.guards import LOCAL_PROGRAMS
from flowedge.gateway.handshakes import HandshakeProtocol
from flowedge.gateway.http_protocol import SEND_BUFFER, ConnectionRules, limited_by
from flowedge.gateway.metrics import GatewayMetrics
from flowedge.gateway.middleware import REQUEST_ID, RequestMiddleware
from flowedge.gateway.page import routes as page
from flowedge.gateway.pipelines.opening import DeviceProgress, OpeningThread
from flowedge.gateway.pipelines.pool import PipelinePool
from flowedge.gateway.pipelines.served import PipelineEntry
from flowedge.gateway.state import Gateway
from flowedge.network.address import join_address
from flowedge.network.ports import OTHER_PORT, listening_error
from flowedge.network.supervision import supervise
from flowedge.version import VERSION

__all__ = ["Gateway", "make_app"]

ROUTERS: tuple[APIRouter, ...] = (
    status_routes.router,
    status_routes.models_router,
    openai.router,
    ollama.router,
    page.router,
    openapi.router,
)
"""The routers of all endpoints; the first that has a route for a path answers."""
_EXPOSED = [REQUEST_ID, "retry-after", IGNORED, SYSTEM, JOINED]


def make_app(gateway: Gateway) -> FastAPI:
    """Return the application that answers with the state of `gateway`."""
    app = FastAPI(title="FlowEdge", version=VERSION, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.gateway = gateway
    add_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    openapi.describe(app)
    app.add_middleware(RequestMiddleware, gateway=gateway, endpoints=EndpointNames(app.routes))
    http = gateway.settings.http
    if http.cors_origins or http.is_local:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=http.cors_origins,
            allow_origin_regex=LOCAL_PROGRAMS.pattern if http.is_local else None,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=_EXPOSED,
        )
    return app


_LOOK_S = 1.0  # between two signs of life to systemd, at most
_STOP_S = 2  # for each further step of stopping, after drain_s
_BACKLOG = 2048
EXIT_OF_SIGNAL = 128  # added to the number of the signal that ended answers before their time

Opening = AbstractContextManager[Sequence[PipelineEntry]]
"""Yields the pipelines; entered and left in a thread of its own, while the gateway listens already."""
OnListening = Callable[[str], None]
"""Called with the URL when the gateway listens."""
OnServing = Callable[[Gateway], None]
"""Called when each pipeline has been asked how it is."""

_log = logging.getLogger(__name__)


def serve(
    settings: GatewaySettings,
    opening: Opening,
    progress: DeviceProgress,
    on_listening: OnListening,
    on_serving: OnServing,
) -> int:
    """Serve until SIGTERM or SIGINT, upon which the gateway drains; a second signal ends it at once.

    Args:
        progress: what is done to open the pipelines, for requests that come meanwhile.

    Returns:
        The exit code: 0 after a drain, else 128 and the number of the second signal.

    Raises:
        BadRequestError: when a key is needed and there is none, or the files of TLS cannot be used.
        AccessError: when the file of the keys cannot be used.
        DeviceError: when the gateway cannot listen where the settings say.
        FlowEdgeError: when the pipelines cannot be opened.
    """
    return asyncio.run(run_gateway(settings, opening, progress, on_listening, on_serving))


async def run_gateway(
    settings: GatewaySettings,
    opening: Opening,
    progress: DeviceProgress,
    on_listening: OnListening,
    on_serving: OnServing,
) -> int:
    """Do what `serve` does, on a running event loop."""
    signals = Signals()
    metrics = GatewayMetrics()
    pool = PipelinePool((), settings.pipelines)
    pool.opening = progress
    gateway = Gateway(settings, pool, metrics)
    metrics.watch_pipelines(pool.readings)
    metrics.waiting.set_function(lambda: pool.waiting)
    server = GatewayServer(gateway)
    notifier = Notifier()
    with listening_socket(settings.http) as listener:
        thread = OpeningThread(opening)
        async with pool, _refreshing_credentials(settings.security.refresh_s), server.running(listener):
            url = url_of(settings.http, listener)
            fields = about(event="started", address=url, version=VERSION)
            _log.info("the gateway serves", extra=fields)
            notifier.notify(READY)
            on_listening(url)
            watch = supervise("the watch over the gateway", partial(_watch, notifier, gateway, url))
            watching = asyncio.create_task(watch)
            opened = asyncio.create_task(_open(thread, gateway, on_serving))
            try:
                await server.until(signals.stop, opened)
                notifier.notify(STOPPING)
                await _drain(gateway, signals)
            finally:
                for task in (watching, opened):
                    task.cancel()
                await asyncio.gather(watching, opened, return_exceptions=True)
        await thread.close()
    _log.info("the gateway stops", extra=about(event="stopping"))
    return EXIT_OF_SIGNAL + signals.last if signals.hurry.is_set() else 0


async def _open(thread: OpeningThread, gateway: Gateway, on_serving: OnServing) -> None:
    await gateway.pipelines.add(await thread.entries())
    on_serving(gateway)


class GatewayServer:
    """uvicorn, with connections that keep to the gateway's limits."""

    def __init__(self, gateway: Gateway) -> None:
        """Raises BadRequestError when the files of TLS cannot be used."""
        settings = gateway.settings
        http = settings.http
        limits = settings.limits
        # Half of the descriptors are for files, pipelines and connections that are about to close.
        most = min(limits.connections, raise_descriptor_limit() // 2)
        each = max(1, limits.connections_each * most // limits.connections)
        table = ConnectionTable(most, each, http.trusted_proxies)
        rules = ConnectionRules(limits, settings.deadlines, table, http.root_path)
        config = uvicorn.Config(
            make_app(gateway),
            http=limited_by(rules),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(http.trusted_proxies),
            forwarded_allow_ips=list(http.trusted_proxies),
            root_path=http.root_path,
            backlog=_BACKLOG,
            timeout_keep_alive=math.ceil(settings.deadlines.idle_s),
            timeout_graceful_shutdown=_STOP_S,
        )
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # clients' mistakes are no news
        config.load()
        config.ssl = tls_context(http)
        self._server = _UnsignalledServer(config, rules)
        gateway.metrics.connections.set_function(lambda: len(self._server.server_state.connections))
        self._serving: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def running(self, listener: socket.socket) -> AsyncIterator[None]:
        """Serve on a listening socket while the context lasts."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        await self.until(self._server.has_started)
        try:
            yield
        finally:
            self._server.should_exit = True
            await self._serving

    async def until(self, stop: asyncio.Event, opened: asyncio.Task[None] | None = None) -> None:
        """Return when `stop` is set, or the server has ended by itself; raise the error of `opened`."""
        assert self._serving is not None, "it runs"
        stopping = asyncio.create_task(stop.wait())
        try:
            if opened is not None:
                tasks = {stopping, self._serving, opened}
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if opened.done():
                    await opened
            await asyncio.wait({stopping, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()


class _UnsignalledServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, rules: ConnectionRules) -> None:
        super().__init__(config)
        self._handshake_s, self._table = rules.deadlines.headers_s, rules.table
        self.has_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen as uvicorn does, but with limits for TLS handshakes, for which it has no settings."""
        await self.lifespan.startup()
        config = self.config
        protocol: Callable[[], asyncio.Protocol] = partial(
            config.http_protocol_class,
            config=config,  # type: ignore[call-arg]
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        if config.ssl is not None:
            protocol = partial(HandshakeProtocol, protocol, config.ssl, self._handshake_s, self._table)
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(protocol, sock=each, backlog=config.backlog) for each in sockets or ()
        ]
        self.started = True
        self.has_started.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the gateway."""
        yield


@contextlib.contextmanager
def listening_socket(http: ListenSettings) -> Iterator[socket.socket]:
    """Yield the socket that listens where the settings say.

    Raises:
        DeviceError: when that is not possible.
    """
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    # Without the protocol's name asyncio does not switch Nagle's algorithm off, which costs 40 ms an answer.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # its connections have it, too
        try:
            listener.bind((http.host, http.port))
            listener.listen(_BACKLOG)
        except OSError as error:
            name = platform.node()
            raise listening_error(error, http.host, http.port, name, f"{OTHER_PORT} with --listen") from error
        listener.setblocking(False)
        yield listener


def tls_context(http: ListenSettings) -> ssl.SSLContext | None:
    """Return the settings of TLS; None for plain HTTP.

    Raises:
        BadRequestError: when only one of the two files is given, or they cannot be used.
    """
    if http.tls_cert is None and http.tls_key is None:
        return None
    if http.tls_cert is None or http.tls_key is None:
        raise BadRequestError("HTTPS needs both --tls-cert and --tls-key; give both, or neither")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(http.tls_cert, http.tls_key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise BadRequestError(
            f"{http.tls_cert} and {http.tls_key} cannot be used for HTTPS: {error}; both must be PEM files, "
            "the key without a password"
        ) from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def url_of(http: ListenSettings, listener: socket.socket) -> str:
    """Return the URL at which a browser of this machine finds the gateway."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{'http' if http.tls_cert is None else 'https'}://{join_address(shown, port)}{http.root_path}/"


async def _watch(notifier: Notifier, gateway: Gateway, url: str) -> None:
    """Give systemd signs of life, and the line of `systemctl status`."""
    pause_s = _LOOK_S if notifier.watchdog_s is None else min(_LOOK_S, notifier.watchdog_s / 2)
    while True:
        notifier.status(f"{url}; {gateway.problem or 'ready'}; {gateway.running} requests")
        if notifier.watchdog_s is not None:
            notifier.notify(WATCHDOG)
        await asyncio.sleep(pause_s)


async def _drain(gateway: Gateway, signals: Signals) -> None:
    """Refuse new requests, and wait for those that run; then have them end with an error."""
    gateway.draining.set()
    drain_s = gateway.settings.deadlines.drain_s
    fields = about(event="draining", number=gateway.running, seconds=drain_s)
    _log.info("the gateway is draining: what runs has this long to end", extra=fields)
    waits = [asyncio.create_task(event.wait()) for event in (gateway.idle, signals.hurry)]
    await asyncio.wait(waits, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if gateway.running:
        fields = about(event="cut", number=gateway.running)
        _log.warning("what still runs ends with an error", extra=fields)
        gateway.cut.set()


@contextlib.asynccontextmanager
async def _refreshing_credentials(refresh_s: float) -> AsyncIterator[None]:
    """Renew this machine's certificate when that is due, and fetch the revocation list, meanwhile."""
    store = current().store

    async def refresh() -> None:
        while store is not None:
            await asyncio.sleep(refresh_s)
            await asyncio.to_thread(refresh_credentials, store, utc_now())

    task = asyncio.create_task(supervise("the renewal of credentials", refresh))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def check_settings(settings: GatewaySettings) -> None:
    """Check all that can be wrong with the settings of a gateway before it is started.

    Raises:
        BadRequestError, AccessError, DeviceError: as `serve`.
    """
    tls_context(settings.http)
    access = settings.access
    Gatekeeper(access.keys, KeyFile(access.keys_path), local=settings.http.is_local)
    with listening_socket(settings.http):
        pass  # the port is free
