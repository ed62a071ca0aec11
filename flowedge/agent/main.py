"""The agent: one process a device, which takes a role when it is asked to and serves it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio

from flowedge.agent.config.agent_config import AgentConfig
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
from flowedge.core.errors import DeadlineError, DeviceError
from flowedge.core.log_fields import about
from flowedge.live.compute_thread import ComputeThread
from flowedge.live.transport.server import StreamServer
from flowedge.net.address import join_address
from flowedge.net.deadline import within
from flowedge.security import process
from flowedge.security.process import Security
from flowedge.security.tls.credential_renewal import renewing_credentials
from flowedge.security.tls.serving import add_port, new_server
from flowedge.v1 import agent_pb2_grpc, generation_pb2_grpc, measure_pb2_grpc
from flowedge.version import PROTOCOL_VERSION, VERSION

if TYPE_CHECKING:
    from flowedge.agent.roles.stage_role import MakePacing

_log = logging.getLogger(__name__)

STOP_GRACE_S = 0.5  # for calls that are told of the end to end


def serve(config: AgentConfig, *, file: Path | None = None, pacing: MakePacing | None = None) -> None:
    """Run an agent until the process is told to stop (SIGTERM or SIGINT): it drains then, and at once on a
    second signal.

    Args:
        file: where the configuration was read, for the log.

    Raises DeviceError when it cannot listen where it is told to, or cannot be advertised.
    """
    set_up_logs(config.log, device_name(config))
    keep_from_hub(config)
    asyncio.run(run_agent(config, file=file, pacing=pacing))


async def run_agent(
    config: AgentConfig, *, file: Path | None = None, pacing: MakePacing | None = None
) -> None:
    """See `serve`; for a running event loop."""
    signals = Signals()
    security = process.use(Security.load(config.security))
    config = secured(config, security)
    limiting = (CallLimits(config.limits), UnreadableRequests())
    server, guard = new_server(config.link.channel_options, security, limiting)
    device_id = DeviceId.claim()
    identity = DeviceInfo.of(config, bind(server, config, security), device_id.value)
    lane = ComputeThread(identity.name, config.deadlines.progress_s)
    roles = RoleHolder(identity.name)
    metrics = AgentMetrics()
    library = serve_weights(server, identity.name, config)
    service = AgentService(identity, roles, config, lane, library, metrics, pacing)
    agent_pb2_grpc.add_AgentServicer_to_server(service, server)
    generation = GenerationService(identity.name, roles, config, metrics)
    generation_pb2_grpc.add_GenerationServicer_to_server(generation, server)
    measure_pb2_grpc.add_MeasureServicer_to_server(MeasureService(identity, roles, config, lane), server)
    streams = StreamServer(identity.name, roles.streams_of, config.link, metrics)
    server.add_generic_rpc_handlers((streams.handler(),))
    operations = Operations(identity, roles, config, lane, signals, metrics)
    operations.add_to(server)
    await server.start()
    try:
        async with (
            renewing_credentials(security, guard, config.security.refresh_s),
            operations,
            kept_pipeline(identity, roles, config, service.lead),
        ):
            await _serve_until(signals, identity, config, operations, file)
    finally:
        _log.info("the agent stops", extra=about(event="stopping"))
        with contextlib.suppress(DeadlineError):  # a peer that does not answer must not keep us
            release = roles.release("", "the device has drained")
            await within(config.deadlines.stop_s, release, "the role was not given up")
        await server.stop(STOP_GRACE_S)
        lane.stop(config.deadlines.stop_s)
        device_id.release()


async def _serve_until(
    signals: Signals,
    identity: DeviceInfo,
    config: AgentConfig,
    operations: Operations,
    file: Path | None,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if config.agent.advertise:
            from flowedge.discovery.advertiser import Advertiser  # noqa: PLC0415 (imports zeroconf)

            await stack.enter_async_context(Advertiser(identity.record(), config.discovery))
        _announce(identity, file)
        operations.ready()
        await signals.stop.wait()
        await operations.begin_drain()  # before the goodbye, which others may be slow to hear


def _announce(identity: DeviceInfo, file: Path | None) -> None:
    """Tells the log, and a person or whoever started the agent, that it serves and where."""
    fields = about(
        event="started",
        address=identity.address,
        kind=identity.kind,
        version=VERSION,
        protocol=PROTOCOL_VERSION,
        config=str(file or "none"),
    )
    _log.info("the agent serves", extra=fields)
    if not goes_to_journal(sys.stdout.fileno()):
        print(f"{identity.name} ({identity.kind}) listening on {identity.address}", flush=True)


def secured(config: AgentConfig, security: Security) -> AgentConfig:
    """Return the configuration with the host and the name that the credentials give. Errors as Security."""
    host, name = security.listen_host(config.agent.host), security.device_name(config.agent.name)
    device = config.agent.model_copy(update={"host": host, "name": name})
    return config.model_copy(update={"agent": device})


def bind(server: grpc.aio.Server, config: AgentConfig, security: Security) -> int:
    """Has a server listen where the configuration says; returns the port, DeviceError when it cannot."""
    address = join_address(security.listen_host(config.agent.host), config.agent.port)
    try:
        port = add_port(server, address, security)
    except RuntimeError as error:
        raise DeviceError(config.agent.name or "this one", f"cannot listen on {address}: {error}") from error
    if port == 0:
        raise DeviceError(config.agent.name or "this one", f"cannot listen on {address}")
    return port
