"""The operation of a running agent: health, service manager, metrics, and its drain."""

from __future__ import annotations

import asyncio
import logging
import signal
from types import TracebackType

import grpc.aio
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from flowedge.agent.device_info import DeviceInfo
from flowedge.agent.operations.draining import Drain
from flowedge.agent.operations.health import SERVICES, Health, serving
from flowedge.agent.operations.metrics import AgentMetrics
from flowedge.agent.operations.metrics_readings import MetricsReadings
from flowedge.agent.operations.metrics_server import MetricsServer
from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.pipeline_role import PipelineRole
from flowedge.system.sd_notify import READY, STOPPING, WATCHDOG, Notifier
from flowedge.v1 import agent_pb2 as pb

LOOK_S = 0.5  # between two readings of the role, at most

_log = logging.getLogger(__name__)


class Signals:
    """SIGTERM and SIGINT: the first signal sets `stop`, the second sets `hurry`."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._come)

    def _come(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


class Operations:
    """An async context in which the agent's state is reported; when it is left the agent drains.

    `ready` is to be called when the agent serves, `begin_drain` as soon as it is told to stop.
    """

    def __init__(self, agent: Agent, signals: Signals, metrics: AgentMetrics) -> None:
        self._agent = agent
        self._signals = signals
        self._metrics = metrics
        self._server: MetricsServer | None = None
        self._notifier = Notifier()
        self._health = Health()
        deadlines = agent.config.deadlines
        self._drain = Drain(agent.name, agent.roles, deadlines.drain_s, deadlines.stop_s)
        self._draining = False
        self._watch: asyncio.Task[None] | None = None

    def add_to(self, server: grpc.aio.Server) -> None:
        """Have a server, before it is started, serve health, and reflection if the settings say so."""
        self._health.add_to(server)
        if self._agent.config.agent.reflection:
            names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)

    async def __aenter__(self) -> Operations:
        """Begin to serve metrics. Raises DeviceError when that is not possible at the configured address."""
        metrics = self._agent.config.metrics
        if metrics.enabled:
            self._metrics.registry.register(
                MetricsReadings(self._agent.name, self._agent.roles, self._agent.compute)
            )
            self._server = MetricsServer(
                self._agent.name,
                self._metrics.registry,
                metrics.host,
                metrics.port,
            )
        await self._report_state()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.begin_drain()
                await self._drain.wait(self._signals.hurry)
        finally:
            if self._server is not None:
                await asyncio.to_thread(self._server.stop)
            if self._watch is not None:
                self._watch.cancel()
                await asyncio.gather(self._watch, return_exceptions=True)

    def ready(self) -> None:
        """Tell the service manager that the agent serves, and begin to watch the agent."""
        self._notifier.tell(READY)
        self._watch = asyncio.create_task(self._watch_state())
        self._watch.add_done_callback(_tell_bug)

    async def begin_drain(self) -> None:
        """Refuse everything new, and report it; a second call does nothing."""
        if not self._draining:
            self._draining = True
            self._notifier.tell(STOPPING)
            self._drain.begin()
            await self._report_state()

    async def _watch_state(self) -> None:
        watchdog_s = self._notifier.watchdog_s
        pause_s = LOOK_S if watchdog_s is None else min(LOOK_S, watchdog_s / 2)
        while True:
            await self._report_state()
            if watchdog_s is not None:
                self._sign_of_life()
            await asyncio.sleep(pause_s)

    async def _report_state(self) -> None:
        role = self._agent.roles.role
        await self._health.tell(serving(role, draining=self._draining))
        self._notifier.status(_status(self._agent.info, role, draining=self._draining))

    def _sign_of_life(self) -> None:
        """Tell the watchdog that the agent works, unless the compute thread is stuck in a job."""
        overdue_s = self._agent.compute.overdue_s
        if overdue_s > 0:
            _log.error("a computation is %.1f s beyond its limit; no sign of life is given", overdue_s)
        else:
            self._notifier.tell(WATCHDOG)


def _tell_bug(watch: asyncio.Task[None]) -> None:
    """Log an error that has ended the watch; a watchdog will restart the agent because of it."""
    if not watch.cancelled() and watch.exception() is not None:
        _log.error("the watch over the agent has failed", exc_info=watch.exception())


def _status(identity: DeviceInfo, role: PipelineRole | None, *, draining: bool) -> str:
    """Return the line that `systemctl status` shows."""
    device = pb.Device()
    if role is not None:
        role.describe(device)
    parts = ["draining" if draining else f"listening on {identity.address}"]
    if role is None or not device.role:
        parts.append("no role")
    else:
        layers = f", layers {device.layer_start} to {device.layer_stop - 1}" if device.layer_stop else ""
        parts.append(f"{device.role} of {device.model}{layers}{'' if role.ready else ', loading'}")
        parts.append(f"{role.num_sessions} sessions")
    return "; ".join(parts)
