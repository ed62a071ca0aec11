"""The operation of a running agent: health, service manager, metrics, and its drain."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, cast

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from flowedge.agent.device_info import DeviceInfo
from flowedge.agent.metrics import AgentMetrics, MetricsReadings
from flowedge.agent.metrics_server import MetricsServer
from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.agent.roles.pipeline_role import PipelineRole
from flowedge.agent.signals import Signals
from flowedge.cluster.tls.renewable_server import RenewableServer
from flowedge.core.errors import DrainingError
from flowedge.core.log_fields import about
from flowedge.device.sd_notify import READY, STOPPING, WATCHDOG, Notifier
from flowedge.network.grpc_handlers import Context
from flowedge.network.replies import send_reply
from flowedge.network.supervision import supervise
from flowedge.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    import grpc.aio


class HealthService(health.aio.HealthServicer):
    """Tells which services can serve.

    The library's own Watch sends with a lock held that a change of the status needs: one watcher that reads
    nothing would stop every later change, and with it the agent's signs of life.
    """

    def __init__(self, read_s: float) -> None:
        """read_s: seconds within which a watcher has to take a status."""
        super().__init__()
        self._read_s = read_s
        self._changed = asyncio.Event()
        self._statuses: dict[str, Any] = {"": health_pb2.HealthCheckResponse.SERVING}

    async def set(self, service: str, status: Any) -> None:
        """Set the status of a service, and wake the watchers."""
        await super().set(service, status)
        self._statuses[service] = status
        self._changed.set()
        self._changed = asyncio.Event()

    async def Watch(  # noqa: N802 (the method name is gRPC's)
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> None:
        unknown, last = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN, None
        while True:
            changed, status = self._changed, self._statuses.get(request.service, unknown)
            if status != last:
                await send_reply(context, health_pb2.HealthCheckResponse(status=status), self._read_s)
                last = status
            await changed.wait()


AGENT = "flowedge.v1.Agent"
GENERATION = "flowedge.v1.Generation"
MEASURE = "flowedge.v1.Measure"
PIPELINE = "flowedge.v1.Pipeline"
WEIGHTS = "flowedge.v1.Weights"
SERVICES = (AGENT, GENERATION, MEASURE, PIPELINE, WEIGHTS)
LOOK_S = 0.5  # between two readings of the role, at most
POLL_S = 0.02  # between two looks at whether a role has drained

_STATUS = {
    True: health_pb2.HealthCheckResponse.SERVING,
    False: health_pb2.HealthCheckResponse.NOT_SERVING,
}
_log = logging.getLogger(__name__)


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
        self._health = HealthService(agent.config.deadlines.read_s)
        self._draining = False
        self._watches: list[asyncio.Task[None]] = []

    def add_to(self, server: RenewableServer) -> None:
        """Have a server, before it is started, serve health, and reflection if the settings say so.

        No service is reported as serving before the context is entered.
        """
        taking = cast("grpc.aio.Server", server)  # it takes handlers as that does
        health_pb2_grpc.add_HealthServicer_to_server(self._health, taking)
        if self._agent.config.agent.reflection:
            names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, taking)

    async def __aenter__(self) -> Operations:
        """Begin to serve metrics. Raises DeviceError when that is not possible at the configured address."""
        agent, metrics = self._agent, self._agent.config.metrics
        if metrics.enabled:
            registry = self._metrics.registry
            registry.register(MetricsReadings(agent.name, agent.roles, agent.compute, agent.throttling))
            self._server = MetricsServer(agent.name, registry, metrics.host, metrics.port)
        await self._report_state()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.begin_drain()
                await self._drain()
        finally:
            if self._server is not None:
                await asyncio.to_thread(self._server.stop)
            for watch in self._watches:
                watch.cancel()
            await asyncio.gather(*self._watches, return_exceptions=True)

    def ready(self) -> None:
        """Tell the service manager that the agent serves, and begin to watch the agent."""
        self._notifier.notify(READY)
        # A watch that only fails gives no sign of life, so a watchdog restarts the agent.
        watch = supervise("the watch over the agent", self._watch_state, first_s=LOOK_S, most_s=5.0)
        throttling = supervise("the watch over slowdowns", self._agent.throttling.run)
        self._watches = [asyncio.create_task(each) for each in (watch, throttling)]

    async def begin_drain(self) -> None:
        """Refuse everything new, and report it; a second call does nothing."""
        if self._draining:
            return
        self._draining = True
        self._notifier.notify(STOPPING)
        name, roles = self._agent.name, self._agent.roles
        roles.begin_drain(DrainingError(name, "it is draining and accepts no new work"))
        running = roles.role.load().sessions if roles.role is not None else 0
        fields = about(event="draining", sessions=running, seconds=self._agent.config.deadlines.drain_s)
        _log.info("the agent is draining: what runs has this long to end", extra=fields)
        await self._report_state()

    async def _drain(self) -> None:
        """Return when all sessions have ended; those that do not end in time end with a DrainingError."""
        role, deadlines = self._agent.roles.role, self._agent.config.deadlines
        hurry = self._signals.hurry
        drain_s = 0.0 if role is not None and role.hands_over else deadlines.drain_s
        if role is None or await _is_drained(role, drain_s, hurry):
            _log.info("the agent has drained", extra=about(event="drained"))
            return
        why = "told to stop at once" if hurry.is_set() else f"{drain_s:g} s were over"
        said = "it is draining, and the session did not end in time"
        if role.hands_over:
            why, said = "answers go on without this device", "it is being stopped"
        fields = about(event="handed_back", sessions=role.load().sessions, reason=why)
        _log.warning("what still runs is handed back", extra=fields)
        role.fail_sessions(DrainingError(self._agent.name, said))
        if not await _is_drained(role, deadlines.stop_s, asyncio.Event()):
            _log.warning("not all peers have taken note of what was handed back")

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
        for service, does in _serving(role, draining=self._draining).items():
            await self._health.set(service, _STATUS[does])
        slowed = str(self._agent.throttling.state)
        self._notifier.status(_status(self._agent.info, role, slowed, draining=self._draining))

    def _sign_of_life(self) -> None:
        """Tell the watchdog that the agent works, unless the compute thread is stuck in a job."""
        overdue_s = self._agent.compute.overdue_s
        if overdue_s > 0:
            _log.error("a computation is %.1f s beyond its limit; no sign of life is given", overdue_s)
        else:
            self._notifier.notify(WATCHDOG)


def _serving(role: PipelineRole | None, *, draining: bool) -> dict[str, bool]:
    """Return which services can serve now, by name; "" is the agent as a whole.

    The agent and its services Agent and Weights serve from the start until they drain. Generation serves on a
    draft node whose pipeline is ready and whole, Pipeline on a device with a part in such a pipeline, and
    Measure on a device without a role.
    """
    ready = role is not None and role.ready
    asked = {
        "": True,
        AGENT: True,
        GENERATION: ready and isinstance(role, DraftNodeRole),
        MEASURE: role is None,
        PIPELINE: ready,
        WEIGHTS: True,
    }
    return {service: does and not draining for service, does in asked.items()}


async def _is_drained(role: PipelineRole, seconds: float, hurry: asyncio.Event) -> bool:
    deadline = time.monotonic() + seconds
    while not role.load().drained:
        if hurry.is_set() or time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _status(identity: DeviceInfo, role: PipelineRole | None, slowed: str, *, draining: bool) -> str:
    """Return the line that `systemctl status` shows."""
    device = pb.Device()
    if role is not None:
        role.describe(device)
    parts = ["draining" if draining else f"listening on {identity.address}"]
    if role is None or not device.role:
        parts.append("no role")
    else:
        layers = f", layers {device.layer_start} to {device.layer_stop - 1}" if device.layer_stop else ""
        parts.append(f"{device.role} of {role.config.model}{layers}{'' if role.ready else ', loading'}")
        parts.append(f"{role.load().sessions} sessions")
    if slowed:
        parts.append(f"slowed down by {slowed}")
    return "; ".join(parts)
