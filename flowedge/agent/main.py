"""The agent: one process a device, which takes a role when it is asked to and serves it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from dataclasses import replace

import grpc.aio

from flowedge.agent.device_id import DeviceId
from flowedge.agent.device_info import DeviceInfo, device_name
from flowedge.agent.operations.logs import goes_to_journal, set_up_logs
from flowedge.agent.operations.metrics import AgentMetrics
from flowedge.agent.operations.operations import Operations, Signals
from flowedge.agent.operations.pipeline_keeper import kept_pipeline
from flowedge.agent.roles.role import RoleHolder
from flowedge.agent.roles.weight_sharing import keep_from_hub, serve_weights
from flowedge.agent.services.agent_service import AgentService
from flowedge.agent.services.call_limits import CallLimits
from flowedge.agent.services.generation_service import GenerationService
from flowedge.agent.services.measure_service import MeasureService
from flowedge.agent.services.unreadable_requests import UnreadableRequests
from flowedge.agent.settings import AgentSettings
from flowedge.core.errors import DeadlineError, DeviceError
from flowedge.core.log_fields import about
from flowedge.live.compute_thread import ComputeThread
from flowedge.live.transport.server import StreamServer
from flowedge.net.address import join_address
from flowedge.net.deadline import within
from flowedge.security import process
from flowedge.security.process import Security
from flowedge.security.tls.serving import add_port, new_server
from flowedge.security.tls.upkeep import kept_current
from flowedge.v1 import agent_pb2_grpc, generation_pb2_grpc, measure_pb2_grpc
from flowedge.version import PROTOCOL_VERSION, VERSION

_log = logging.getLogger(__name__)

__all__ = ["AgentSettings", "run_agent", "serve"]

STOP_GRACE_S = 0.5  # for calls that are told of the end to end


def serve(settings: AgentSettings) -> None:
    """Run an agent until the process is told to stop (SIGTERM or SIGINT): it drains then, and at once on a
    second signal.

    Raises DeviceError when it cannot listen where it is told to, or cannot be advertised.
    """
    set_up_logs(settings.log, device_name(settings))
    keep_from_hub(settings)
    asyncio.run(run_agent(settings))


async def run_agent(settings: AgentSettings) -> None:
    """See `serve`; for a running event loop."""
    signals = Signals()
    security = process.use(Security.load(settings.security))
    settings = secured(settings, security)
    limiting = (CallLimits(settings.limits), UnreadableRequests())
    server, guard = new_server(settings.link.channel_options, security, limiting)
    device_id = DeviceId.claim()
    identity = DeviceInfo.of(settings, bind(server, settings, security), device_id.value)
    lane = ComputeThread(identity.name, settings.progress_s)
    roles = RoleHolder(identity.name)
    metrics = AgentMetrics()
    library = serve_weights(server, identity.name, settings)
    service = AgentService(identity, roles, settings, lane, library, metrics)
    agent_pb2_grpc.add_AgentServicer_to_server(service, server)
    generation = GenerationService(identity.name, roles, settings, metrics)
    generation_pb2_grpc.add_GenerationServicer_to_server(generation, server)
    measure_pb2_grpc.add_MeasureServicer_to_server(MeasureService(identity, roles, settings, lane), server)
    streams = StreamServer(identity.name, roles.streams_of, settings.link, metrics)
    server.add_generic_rpc_handlers((streams.handler(),))
    operations = Operations(identity, roles, settings, lane, signals, metrics)
    operations.add_to(server)
    await server.start()
    try:
        async with (
            kept_current(security, guard, settings.security.refresh_s),
            operations,
            kept_pipeline(identity, roles, settings, service.lead),
        ):
            await _serve_until(signals, identity, settings, operations)
    finally:
        _log.info("the agent stops", extra=about(event="stopping"))
        with contextlib.suppress(DeadlineError):  # a peer that does not answer must not keep us
            await within(
                settings.stop_s, roles.release("", "the device has drained"), "the role was not given up"
            )
        await server.stop(STOP_GRACE_S)
        lane.stop(settings.stop_s)
        device_id.release()


async def _serve_until(
    signals: Signals, identity: DeviceInfo, settings: AgentSettings, operations: Operations
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if settings.advertise:
            from flowedge.discovery.advertiser import Advertiser  # noqa: PLC0415 (imports zeroconf)

            await stack.enter_async_context(Advertiser(identity.record(), settings.discovery))
        _announce(identity, settings)
        operations.ready()
        await signals.stop.wait()
        await operations.begin_drain()  # before the goodbye, which others may be slow to hear


def _announce(identity: DeviceInfo, settings: AgentSettings) -> None:
    """Tells the log, and a person or whoever started the agent, that it serves and where."""
    fields = about(
        event="started",
        address=identity.address,
        kind=identity.kind,
        version=VERSION,
        protocol=PROTOCOL_VERSION,
        config=settings.config or "none",
    )
    _log.info("the agent serves", extra=fields)
    if not goes_to_journal(sys.stdout.fileno()):
        print(f"{identity.name} ({identity.kind}) listening on {identity.address}", flush=True)


def secured(settings: AgentSettings, security: Security) -> AgentSettings:
    """The settings with the host and the name that go with an identity. Errors as Security has them."""
    host, name = security.listen_host(settings.host), security.device_name(settings.name)
    return replace(settings, host=host, name=name)


def bind(server: grpc.aio.Server, settings: AgentSettings, security: Security) -> int:
    """Has a server listen where the settings say; returns the port, DeviceError when it cannot."""
    address = join_address(security.listen_host(settings.host), settings.port)
    try:
        port = add_port(server, address, security)
    except RuntimeError as error:
        raise DeviceError(settings.name or "this one", f"cannot listen on {address}: {error}") from error
    if port == 0:
        raise DeviceError(settings.name or "this one", f"cannot listen on {address}")
    return port
