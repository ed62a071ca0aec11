"""A running agent, as its roles and services see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from flowedge.agent.agent_config import AgentConfig
from flowedge.agent.device_info import DeviceInfo, device_name
from flowedge.agent.holding.device_speed import DeviceSpeed
from flowedge.agent.holding.left_loaded import LeftLoaded
from flowedge.agent.roles.led_pipeline import Standby
from flowedge.agent.roles.pipeline_role import BEING_SET_UP, BEING_STOPPED
from flowedge.agent.roles.role_holder import RoleHolder
from flowedge.agent.throttling import ThrottlingWatch
from flowedge.cluster.process import Security
from flowedge.cluster.tls.renewable_server import RenewableServer
from flowedge.device.compute import DeviceCompute
from flowedge.live.compute_thread import ComputeThread
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.transport.frame_link import LinkEvents
from flowedge.live.transport.link import OutLink
from flowedge.live.transport.listener import LinkListener
from flowedge.live.transport.server import StreamServer
from flowedge.live.work_timing import MakeTiming, RealTime
from flowedge.models.host.libraries import import_libraries
from flowedge.network.address import join_address
from flowedge.network.device_state import DeviceLoss
from flowedge.protocol.link_kind import LinkKind
from flowedge.v1 import weights_pb2_grpc as rpc
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.service import WeightsService

if TYPE_CHECKING:
    from flowedge.agent.roles.compute_side import ComputeSide
    from flowedge.planning.placement.live_division import Division
    from flowedge.planning.profile.link import LinkProfile

T = TypeVar("T")
_OTHER_PORT = "end that program, or choose another port with --port or agent.port (0 chooses a free one)"
STOP_GRACE_S = 0.5  # for calls to end that are told of the stop


@dataclass
class Agent:
    """What the roles and services of one agent work with.

    Attributes:
        info: name and addresses of the device.
        compute: the thread in which everything runs that uses torch.
        roles: holds the device's role; local_weights: the weights that the device can give to others.
        observer: is told of the work of live drivers.
        listener: where the connections of links are made; to be closed at the end.
        make_timing: makes the timing of a role that is being taken; called on the event loop.
        member: URI in the device's certificate (see Member.uri); None without a certificate.
        obstacle: why the pipeline of the settings could not be set up the last time; "" if it could, or there
            is none.
        keeps_up: whether pipelines that it leads are kept up; see keep_pipeline.
        recovering: the id that was asked for of a pipeline that is being set up again; "" if there is none.
        stands_by: for which draft node's pipeline it stands by; None for none.
        loss: the device that the pipeline which is being set up again has lost; None if there is none.
        last_set_up_s: the seconds that the last set-up of a pipeline took; None before there was one.
        left: what the last role left loaded when its pipeline was lost.
        speed: measures this device.
        division: of the layers of the last pipeline that it divided by what was measured.
        links: between devices, by the ids of both, as they were measured.
        throttling: whether this device is slowed down.
    """

    info: DeviceInfo
    config: AgentConfig
    compute: ComputeThread
    roles: RoleHolder
    local_weights: LocalWeights
    listener: LinkListener
    observer: LiveObserver = UNOBSERVED
    make_timing: MakeTiming = RealTime
    member: str | None = None
    obstacle: str = ""
    keeps_up: bool = False
    recovering: str = ""
    stands_by: Standby | None = None
    loss: DeviceLoss | None = None
    division: Division | None = None
    links: dict[frozenset[str], LinkProfile] = field(default_factory=dict)
    last_set_up_s: float | None = None
    throttling: ThrottlingWatch = field(default_factory=ThrottlingWatch)
    left: LeftLoaded = field(init=False)
    speed: DeviceSpeed = field(init=False)
    _compute_side: ComputeSide | None = None

    def __post_init__(self) -> None:
        self.left = LeftLoaded(self.compute, self.config.deadlines.recovery_s)
        self.speed = DeviceSpeed(self.info, self.config, self.compute)

    @classmethod
    def listening(
        cls,
        server: RenewableServer,
        config: AgentConfig,
        security: Security,
        compute: DeviceCompute,
        *,
        device_id: str | None = None,
        observer: LiveObserver = UNOBSERVED,
        make_timing: MakeTiming = RealTime,
    ) -> Agent:
        """Have a server listen where the settings say, and serve weights and the streams of pipelines.

        Raises:
            BadRequestError: when the cache cannot be used as the settings say.
            DeviceError: when the server cannot listen there.

        To be called on the event loop.
        """
        address = join_address(security.listen_host(config.agent.host), config.agent.port)
        port = server.listen(address, device_name(config), _OTHER_PORT)
        listener = LinkListener(device_name(config), security.store)
        listener.listen(security.listen_host(config.agent.host), config.agent.links_port)
        info = DeviceInfo.of(config, port, compute, device_id)
        agent = cls(
            info,
            config,
            ComputeThread(info.name, config.deadlines.progress_s),
            RoleHolder(info.name),
            LocalWeights.configured(config.cache.dir, config.cache.gib),
            listener,
            observer,
            make_timing,
            None if security.store is None else security.store.credentials.holder.member.uri,
        )
        weights = WeightsService(info.name, agent.local_weights, config.weights)
        rpc.add_WeightsServicer_to_server(weights, server)
        streams = StreamServer(info.name, agent.roles.streams_of, config.link, listener, observer)
        server.add_generic_rpc_handlers((streams.handler(),))
        return agent

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def not_ready(self) -> str:
        """Why the pipeline that the device leads, or has to lead by its settings, cannot answer yet.

        "" if it can, or if there is none. While a set-up is tried again, the reason is that of the last one.
        """
        if self.stands_by is not None and not self.recovering:
            return ""
        role = self.roles.role
        if self.roles.draining and role is not None and role.leads:
            return BEING_STOPPED
        in_use = role is not None and role.in_use
        reason = "" if role is None else role.not_ready
        if not (reason if in_use else self.config.pipeline.model or self.keeps_pipeline):
            return ""
        reason = self.obstacle or ("" if in_use else reason)
        return f"{BEING_SET_UP}: {reason}" if reason else BEING_SET_UP

    @property
    def recovers(self) -> bool:
        """Whether answers wait for a pipeline that is set up again when this device's own loses a device."""
        return self.keeps_up and self.config.deadlines.recovery_s > 0

    @property
    def keeps_pipeline(self) -> bool:
        """Whether this device sets a pipeline that it has lost up again."""
        role = self.roles.role
        lost = self.recovering or (role is not None and role.lost)
        return self.recovers and bool(self.config.pipeline.model or lost)

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in the compute thread within the time for loading; see ComputeThread.run."""
        result, _ = await self.compute.run(function, self.config.deadlines.load_s)
        return result

    async def open_link(
        self,
        pipeline: str,
        address: str,
        kind: LinkKind,
        events: LinkEvents,
        *,
        route: int = 0,
        to_stage: bool = False,
        member: str | None = None,
    ) -> OutLink:
        """Open a link of a pipeline; see OutLink.open."""
        return await OutLink.open(
            address,
            kind,
            pipeline=pipeline,
            device=self.name,
            events=events,
            settings=self.config.link,
            route=route,
            to_stage=to_stage,
            member=member,
            observer=self.observer,
        )

    async def compute_side(self) -> ComputeSide:
        """Return the side that computes. The first call imports torch, in the compute thread."""
        if self._compute_side is None:
            self._compute_side = await self.run(self._import_compute_side)
        return self._compute_side

    def _import_compute_side(self) -> ComputeSide:
        import_libraries()
        from flowedge.agent.roles.compute_side import ComputeSide  # noqa: PLC0415 (an idle agent has no torch)

        return ComputeSide(self.name, self.config, self.info.compute)
