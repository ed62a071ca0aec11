"""The agent: one process a device, which takes a role when it is asked to and serves it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from pathlib import Path

from flowedge.agent.agent_config import AgentConfig
from flowedge.agent.agent_server import agent_server
from flowedge.agent.device_info import DeviceId, device_name
from flowedge.agent.keeping.configured_pipeline import keep_pipeline
from flowedge.agent.logs import goes_to_journal, set_up_logs
from flowedge.agent.metrics import AgentMetrics
from flowedge.agent.operations import Operations
from flowedge.agent.roles.agent import STOP_GRACE_S, Agent
from flowedge.agent.roles.stage_weights import FetchingAhead
from flowedge.agent.services.agent_service import AgentService
from flowedge.agent.services.generation_service import GenerationService
from flowedge.agent.services.measure_service import MeasureService
from flowedge.agent.signals import Signals
from flowedge.cluster import process
from flowedge.cluster.process import Security
from flowedge.cluster.tls.credential_renewal import renewing_credentials
from flowedge.cluster.tls.serving import guard_of
from flowedge.core.errors import DeadlineError
from flowedge.core.log_fields import about
from flowedge.device.compute import find_compute
from flowedge.discovery.advertiser import Advertiser
from flowedge.live.work_timing import MakeTiming, RealTime
from flowedge.network.deadline import within
from flowedge.v1 import agent_pb2_grpc, generation_pb2_grpc, measure_pb2_grpc
from flowedge.version import PROTOCOL_VERSION, VERSION

# The thread that computes gives way to those that read links. By Python's own 5 ms these wait as long as a
# stage of a small model takes for a segment.
_SWITCH_S = 0.0005

_log = logging.getLogger(__name__)


def serve(config: AgentConfig, make_timing: MakeTiming = RealTime, *, file: Path | None = None) -> None:
    """Run an agent until SIGTERM or SIGINT, upon which it drains; a second signal ends it at once.

    Args:
        make_timing: makes the timing of a role, which is real but for a bench or a test.
        file: where the configuration was read, for the log.

    Raises:
        DeviceError: when it cannot listen where the configuration says, or cannot be advertised.
    """
    set_up_logs(config.log, device_name(config))
    if not config.weights.hub:
        # The hub's library reads it when it is imported.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    asyncio.run(run_agent(config, make_timing, file=file))


async def run_agent(
    config: AgentConfig, make_timing: MakeTiming = RealTime, *, file: Path | None = None
) -> None:
    """Do what `serve` does, on a running event loop."""
    sys.setswitchinterval(_SWITCH_S)
    signals = Signals()
    security = process.use(Security.load_for_agent(config.security))
    config = _secured(config, security)
    compute = await asyncio.to_thread(find_compute, config.agent.device, device_name(config))
    guard = guard_of(security)
    server = agent_server(config, security, guard)
    device_id = DeviceId.claim()
    metrics = AgentMetrics()
    agent = Agent.listening(
        server,
        config,
        security,
        compute,
        device_id=device_id.value,
        observer=metrics,
        make_timing=make_timing,
    )
    ahead = FetchingAhead(agent)
    service = AgentService(agent, ahead)
    agent_pb2_grpc.add_AgentServicer_to_server(service, server)
    generation_pb2_grpc.add_GenerationServicer_to_server(GenerationService(agent, metrics), server)
    measure_pb2_grpc.add_MeasureServicer_to_server(MeasureService(agent), server)
    operations = Operations(agent, signals, metrics)
    operations.add_to(server)
    await server.start()
    try:
        async with (
            renewing_credentials(security, guard, server, config.security.refresh_s),
            operations,
            keep_pipeline(agent, service.lead),
        ):
            await _serve_until(signals, agent, operations, file)
    finally:
        _log.info("the agent stops", extra=about(event="stopping"))
        with contextlib.suppress(DeadlineError):  # a peer that does not answer must not keep us
            releasing = agent.roles.release("", "the device has drained")
            await within(config.deadlines.stop_s, releasing, "the role was not released")
        await ahead.end()
        agent.left.free()
        await agent.listener.close()
        await server.stop(STOP_GRACE_S)
        agent.compute.stop(config.deadlines.stop_s)
        device_id.release()


async def _serve_until(signals: Signals, agent: Agent, operations: Operations, file: Path | None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if agent.config.agent.advertise:
            await stack.enter_async_context(Advertiser(agent.info.record(), agent.config.discovery))
        _announce(agent, file)
        operations.ready()
        await signals.stop.wait()
        await operations.begin_drain()  # before the goodbye, which others may be slow to hear


def _announce(agent: Agent, file: Path | None) -> None:
    """Tell the log, and the person or process that started the agent, that it serves and where."""
    info = agent.info
    compute = info.compute.best
    if compute.reason:
        reason = about(event="gpu_unused", reason=compute.reason)
        _log.warning("the agent computes on its CPU: %s", compute.reason, extra=reason)
    fields = about(
        event="started",
        address=info.address,
        compute=f"{compute.device} ({compute.processor})",
        kind=info.kind,
        version=VERSION,
        protocol=PROTOCOL_VERSION,
        config=str(file or "none"),
    )
    _log.info("the agent serves", extra=fields)
    if not goes_to_journal(sys.stdout.fileno()):
        print(f"{info.name} ({info.kind}) listening on {info.address}", flush=True)


def _secured(config: AgentConfig, security: Security) -> AgentConfig:
    """Return the configuration with the host and the name that the device's certificate asks for."""
    host, name = security.listen_host(config.agent.host), security.device_name(config.agent.name)
    device = config.agent.model_copy(update={"host": host, "name": name})
    return config.model_copy(update={"agent": device})
