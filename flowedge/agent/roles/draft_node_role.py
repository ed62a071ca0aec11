"""The role of the draft node: it sets its pipeline up, then drafts and verifies for it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flowedge.agent.roles.coordinator import (
    PipelineSetup,
    PlannedRoute,
    ReportProgress,
    StageReady,
    release_stages,
    unreported,
)
from flowedge.agent.roles.layer_division import address_here, divided
from flowedge.agent.roles.led_pipeline import LedPipeline
from flowedge.agent.roles.other_agents import MetMembers, meet
from flowedge.agent.roles.pipeline_role import BEING_SET_UP, PipelineRole
from flowedge.agent.roles.tap_choice import choose_retained_taps
from flowedge.agent.roles.weight_sharing import WeightSharing
from flowedge.core.errors import BadRequestError, DeviceLostError, DrainingError, PipelineNotReadyError
from flowedge.core.ids import stage_name
from flowedge.core.log_fields import about
from flowedge.core.pipeline_config import (
    AUTO,
    DRAFT_NODE,
    LAST_STAGE,
    OFF,
    ON,
    PipelineConfig,
    VerificationPlace,
    drafter_label,
)
from flowedge.core.request import Request
from flowedge.device.compute import ComputeChoice
from flowedge.device.memory import read_memory_of
from flowedge.discovery.interfaces import local_interfaces, shares_host
from flowedge.engine.draft_node.cache_budget import AdmissionLimits
from flowedge.live.activity.observed_draft_node import ObservedDraftNode
from flowedge.live.running_request import RunningRequest
from flowedge.live.transport.frame_link import LinkEvents
from flowedge.live.transport.link import OutLink
from flowedge.network.deadline import ProgressDeadline
from flowedge.planning.fit import session_rows
from flowedge.protocol.link_kind import LinkKind
from flowedge.strategies.events import TARGET
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.known_models import is_reference

if TYPE_CHECKING:
    from flowedge.agent.roles.agent import Agent
    from flowedge.agent.roles.compute_side import ComputeSide, OpenedTarget
    from flowedge.drafting.drafter import Drafter
    from flowedge.engine.executors.draft_models import DraftModels
    from flowedge.models.taps import Taps

_log = logging.getLogger(__name__)

_FINGERPRINT_DIGITS = 12
SHORT_SESSION = 256  # rows; a drafter takes more bytes a row for sessions that are shorter


class DraftNodeRole(PipelineRole):
    """Has the other devices take their roles, loads the LM head and the drafter, and serves requests.

    Attributes:
        request: by which it was given the role.
        left_out: addresses of agents that were offered as stages and would slow answers down.
        plan: how the layers were divided, in words; "" if they were not by what was measured.
        proposal: how they had better be divided now, in words; "" if that is not known.
        verification: where tokens are drawn, which is known when the stages are ready.
        standby_problem: why the device named as its standby does not stand by; "" if it does.
    """

    _live: ObservedDraftNode | None

    def __init__(
        self,
        agent: Agent,
        request: pb.DraftNodeRole,
        taps: Taps | None = None,
        caller: str | None = None,
    ) -> None:
        """taps: those of the pipeline (see models/taps.py); by default those the drafter asks for.

        caller: URI of the member that asks for the pipeline (see Member.uri); None in plaintext.
        """
        super().__init__(agent.name, agent.compute, agent.left, request, caller)
        self._agent = agent
        self.request = request
        self.plan = self.proposal = self.standby_problem = ""
        self.left_out: frozenset[str] = frozenset()
        self._stage_address = ""  # by which this device is a stage as well; "" if it is none
        self._taps = taps
        self._routes: list[PlannedRoute] = []
        self._members = MetMembers()
        self._met: dict[str, tuple[str, str]] = {}
        self._stages_ready: list[StageReady] = []
        self._exact = False
        self.verification: VerificationPlace = DRAFT_NODE

    async def take_up(self, report: ReportProgress) -> None:
        """Take the role up, and have the other devices take theirs.

        Raises the FlowEdgeError of the device that fails; all devices have been released then.
        """
        deadline, began = ProgressDeadline(self._agent.config.deadlines.load_s), time.monotonic()

        async def extend_and_report(device: str, text: str, transfer: pb.Transfer | None = None) -> None:
            deadline.extend()  # weights take as long as they take, while they come
            await report(device, text, transfer)

        try:
            loading = self._until_stopped(self._load(extend_and_report))
            await deadline.wait(loading, "the pipeline was not set up, and nothing was heard of it,")
        except BaseException:
            await self._release()
            raise
        self._loaded = True
        self._agent.last_set_up_s = time.monotonic() - began

    @property
    def leads(self) -> bool:
        return True

    @property
    def recovers(self) -> bool:
        return self._agent.recovers

    @property
    def not_ready(self) -> str:
        if self.in_use:
            return "" if self._loaded else BEING_SET_UP
        return f"its pipeline was lost: {self.loss}"

    def serving(self) -> tuple[ObservedDraftNode, DraftModels]:
        """Return what serves requests. Raises PipelineNotReadyError while the pipeline is being set up."""
        if self._live is None or self._models is None or not self._loaded:
            raise PipelineNotReadyError(self._agent.name, BEING_SET_UP)
        return self._live, self._models

    @property
    def lost(self) -> bool:
        """Whether its pipeline was ready and has lost a device since, and nobody has given the role up."""
        return self._loaded and not self._stopped and self._live is not None and not self._live.alive

    @property
    def loss(self) -> DeviceLostError | None:
        """How its pipeline has lost a device; None while it is whole."""
        return None if self._live is None else self._live.lost

    @property
    def met(self) -> Mapping[str, tuple[str, str]]:
        """Name and instance of each device of the pipeline, by address, as it was set up."""
        return self._met

    @property
    def led(self) -> LedPipeline:
        """The pipeline, for a device that leads it next."""
        return LedPipeline(self.request, self.origin, self.owner)

    @property
    def answers_as(self) -> str:
        """What the tokens of answers depend on, beside the request; empty while the pipeline is planned."""
        if not self._routes:
            return ""
        target, config = self._routes[TARGET], self.config
        fingerprint = target.checkpoint.fingerprint[:_FINGERPRINT_DIGITS]
        parts = (target.model, fingerprint, target.dtype, config.quant, config.kv)
        return " ".join(str(part) for part in (*parts, "exact" if self._exact else ""))

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The names of the target's stages, in order; empty while the pipeline is being planned."""
        return tuple(stage.name for stage in self._routes[TARGET].stages) if self._routes else ()

    @property
    def stage_work(self) -> dict[str, list[tuple[int, float]]]:
        """Rows and seconds of the last segments of the target's stages, by address; see SegmentTimes."""
        if self._live is None or not self._routes:
            return {}
        addresses = [stage.address for stage in self._routes[TARGET].stages]
        return dict(zip(addresses, self._live.stage_work.of_each(), strict=True))

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """The number of layers of each of the target's stages."""
        if not self._routes:
            return ()
        return tuple(stage.content.num_layers for stage in self._routes[TARGET].stages)

    async def stages_for(self, spare: str) -> list[pb.StageRole]:
        """Return the stages of the target as an agent is asked for that may have to take their place.

        Raises what WeightSharing.for_spare raises.
        """
        agent, target = self._agent, self._routes[TARGET]
        sharing = WeightSharing(agent, await agent.compute_side(), unreported)
        weights = await sharing.for_spare(target, spare)
        return [] if weights is None else [target.content_of(stage, weights) for stage in target.stages]

    def start(self, request: Request, arrived: float | None = None) -> RunningRequest:
        """Begin to serve a request; see LiveDraftNode.start.

        Raises what `serving`, LiveDraftNode.prepare and LiveDraftNode.start raise.
        """
        live, _ = self.serving()
        return live.start(live.prepare(request), arrived)

    def hold(self, reason: str) -> None:
        """Have new requests wait, because the pipeline will be set up again; those that run go on."""
        if self._live is not None:
            self._live.begin_drain(PipelineNotReadyError(self._agent.name, f"{BEING_SET_UP}: {reason}"))

    def hand_over(self, reason: str) -> None:
        """End what runs so that it goes on with the pipeline that takes the place of this one."""
        error = DrainingError(self._agent.name, f"the pipeline is set up again: {reason}")
        self.begin_drain(error)
        self.fail_sessions(error)

    def draft_with(self, drafter: Drafter) -> None:
        """Have requests from now on use a drafter. No session that drafts may be open.

        Raises:
            BadRequestError: when the drafter asks for other taps than the pipeline has.
            PipelineNotReadyError: while the pipeline is being set up.
        """
        live, models = self.serving()
        if drafter.taps != self._taps:
            raise BadRequestError(
                f"the drafter taps the layers {list(drafter.taps)}, the pipeline {list(self._taps or ())}"
            )
        models.executor.drafter = drafter
        spec = replace(live.spec, has_drafter=True, needs_features=drafter.needs_features, keeps_drafter=True)
        live.configure(spec, self.limits(models))

    def describe(self, device: pb.Device) -> None:
        if not self.in_use:  # the pipeline is broken; the device may be given another role
            return
        device.role = "draft node"
        device.pipeline = self.label
        device.config = self._present_config().to_json()
        device.request_bytes = self._agent.config.generate_request_bytes
        if self._loaded:
            device.stage_addresses.extend(self.request.stages)
            device.middles.extend(self.request.middles)
            device.standby = self.request.standby
            load = self.load()
            device.sessions, device.waiting = load.sessions, load.waiting
            device.context_tokens = 0 if self._live is None else self._live.context_tokens
        if self._models is not None:
            device.weight_bytes, device.draft_tokens = self._models.weight_bytes, self._models.draft_tokens
            device.family = str(self._models.config.model_type)
            device.capabilities.extend(self._models.capabilities)
            device.sampling = json.dumps(dict(self._models.sampling)) if self._models.sampling else ""
            device.no_chat_template = not self._models.has_chat_template
        device.plan, device.proposal = self.plan, self.proposal
        if self.stage is not None:
            of_stage = pb.Device()
            self.stage.describe(of_stage)
            device.layer_start, device.layer_stop = of_stage.layer_start, of_stage.layer_stop
            device.weight_bytes += of_stage.weight_bytes
            device.cache_bytes = of_stage.cache_bytes

    def _present_config(self) -> PipelineConfig:
        """Return the settings of the pipeline, when it is ready with what it has chosen."""
        if not self._loaded or self._models is None:
            return self.config
        target = self._routes[TARGET]
        return self.config.changed(
            drafter=self.config.drafters,
            draft_quant=self._models.draft_quant or "none",
            dtype=target.dtype,
            exact=ON if self._exact else OFF,
            verification=self.verification,
            split=self.stage_layers,
        )

    async def stop(self, reason: str, *, lost: bool = False) -> None:
        whole = self._live is not None and self._live.alive
        lost = lost or (self._live is not None and not whole)
        await super().stop(reason, lost=lost)
        if whole:  # the stages of a pipeline that is lost have given their roles up by themselves
            await self._release()
        await self._stop_stage(reason, lost=lost)
        self._routes = []  # with the checkpoints of their models, whose files are closed with them

    def limits(self, models: DraftModels) -> AdmissionLimits:
        """Return what the caches of all devices have room for: of the stages as they said when they were
        ready, and of the drafter by the memory that is free now.
        """
        config = self._agent.config
        limits = AdmissionLimits(
            sessions=config.limits.sessions,
            queue_length=config.limits.queued_requests,
            queue_s=config.deadlines.queue_s,
            on_demand=True,
        )
        row_bytes = -(-models.drafter_bytes(SHORT_SESSION) // SHORT_SESSION)
        if row_bytes:
            device = self._agent.info.compute.best.device
            rows = session_rows(row_bytes, config.memory, read_memory_of(device, config.memory))
            limits = replace(limits, drafter_rows=rows, on_demand=models.caches_on_demand)
        for stage in self._stages_ready:
            limits = stage.limit(limits)
        return limits

    async def _load(self, report: ReportProgress) -> None:
        agent, request, config = self._agent, self.request, self.config
        if not request.stages:
            raise BadRequestError("a pipeline needs one stage or more")
        await report(agent.name, f"opening {config.model}")
        side = await agent.compute_side()
        sharing = WeightSharing(agent, side, report)
        opened = await self._open_target(side, sharing)
        # A draft node that chooses may be a stage as well.
        own = [await asyncio.to_thread(agent.info.address_for, request.stages[0])] if request.chooses else []
        quants = dict.fromkeys((*own, *request.stages), opened.quant) | {
            address: "" for middle in request.middles for address in middle.addresses
        }
        devices, self._members = await meet(quants, agent.config.link, agent.member)
        if here := address_here(agent, devices):
            devices[here].name = stage_name(agent.name)
        stages = {address: devices[address] for address in dict.fromkeys((*own, *request.stages))}
        found = await divided(
            agent, side, config, opened, stages, report, chooses=request.chooses, hands_on=request.hands_on
        )
        if found is not None:
            self.plan = found.words({address: device.name for address, device in devices.items()})
            config = config.changed(split=found.split)
            request.stages[:] = found.stages
            self.left_out = frozenset(stages) - frozenset((*own, *found.stages))
        request.chooses = False
        unused = set(stages) - set(request.stages)
        devices = {address: device for address, device in devices.items() if address not in unused}
        self._met = {address: (device.name, device.instance) for address, device in devices.items()}
        self._stage_address = address_here(agent, devices)
        routes = await agent.run(
            lambda: side.plan_routes(config, request, self._taps, opened.checkpoint, devices)
        )
        target = routes[TARGET]
        self._taps = target.stages[0].content.taps
        weights = await sharing.sources(routes)
        self._routes = routes
        await self._report_compute(devices, report)
        draft_node_s: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        setup = PipelineSetup(
            self.pipeline,
            self._members,
            agent.info.address_for,
            weights,
            report,
            draft_node_s,
            agent.config.link,
            agent.recovers,
        )
        async with setup.loading(routes) as others:
            await report(agent.name, f"loading the LM head and the drafter {drafter_label(config.drafters)}")
            models = await self._draft_models(side, target)
            self._models, self._executor = models, models.executor
            if target.stages[-1].content.config.verification == AUTO:
                draft_node_s.set_result(await agent.run(lambda: side.draw_seconds(models)))
            # From here on the last stage finds its downstream.
            self._live = self._make_live(models)
            self._stages_ready = await others.ready()
            await others.beside(self._choose_taps(target, models, report))
            addresses = [[stage.address for stage in route.stages] for route in routes]
            await others.beside(self._live.connect(addresses, self._open_to))

    async def _draft_models(self, side: ComputeSide, target: PlannedRoute) -> DraftModels:
        """Return the LM head and the drafter: those that the lost pipeline had if they are the same."""
        agent, config = self._agent, self.config
        of_stages = {"split": (), "verification": DRAFT_NODE}
        fingerprint = target.checkpoint.fingerprint
        self._content = config.changed(dtype=target.dtype, **of_stages), fingerprint, target.exact
        left = agent.left.take(self._content)
        if left is None or left.models is None:
            return await agent.run(lambda: side.load_draft_models(target, config))
        if left.opened is not None:
            left.opened.release()
        return left.models

    async def _choose_taps(self, target: PlannedRoute, models: DraftModels, report: ReportProgress) -> None:
        """Decide where tokens are drawn and what the stages keep, and have requests served so."""
        agent, config = self._agent, self.config
        assert self._live is not None, "the models are loaded"
        ready = self._stages_ready[: len(target.stages)]
        exact = [stage.exact for stage in ready]
        self.verification = LAST_STAGE if ready[-1].draws else DRAFT_NODE
        fields = about(event="verification", pipeline=self.label, verification=self.verification)
        _log.info("the place that draws tokens is known", extra=fields)
        kept: tuple[tuple[int, int], ...] = ()
        if self._taps:
            kept = await choose_retained_taps(
                target,
                self._taps,
                np.dtype(models.dtype).itemsize,
                agent.config.link,
                self._members.by_address,
                draws=self.verification == LAST_STAGE,
            )
            when = "when rows are accepted" if kept else "with every row"
            await report(agent.name, f"what the drafter reads of inner layers comes {when}")
        spec = replace(self._live.spec, verification=self.verification, kept_taps=kept)
        self._live.configure(spec, self.limits(models))
        self._exact = all(exact) and (models.exact or self.verification == LAST_STAGE)
        if config.exact == ON and not self._exact:
            inexact = [stage.name for stage, each in zip(target.stages, exact, strict=True) if not each]
            raise BadRequestError(
                f"rows are not exact on {', '.join(inexact)}; choose another dtype, or omit exact. A CPU "
                "needs FlowEdge's kernels for exact rows: where these are missing, install g++ 11 or newer, "
                "then FlowEdge again"
            )

    async def _open_to(self, address: str, kind: LinkKind, events: LinkEvents) -> OutLink:
        member = self._members.by_address.get(address)
        return await self._agent.open_link(self.pipeline, address, kind, events, to_stage=True, member=member)

    async def _open_target(self, side: ComputeSide, sharing: WeightSharing) -> OpenedTarget:
        config = self.config
        if not is_reference(config.model):
            return await self._agent.run(lambda: side.open_target(config))
        self._opened = await sharing.open_head(config, list(self.request.stages))
        return side.held_in(self._opened.checkpoint, config)

    async def _report_compute(self, devices: Mapping[str, pb.Device], report: ReportProgress) -> None:
        """Tell the caller in which dtype and on what each device computes."""
        own = self._agent.info.compute.best
        await report(self._agent.name, _computes(self._routes[TARGET].dtype, own))
        for route in self._routes:
            for stage in route.stages:
                await report(stage.name, _computes(route.dtype, devices[stage.address].compute))

    async def _release(self) -> None:
        stages = [stage for route in self._routes for stage in route.stages]
        others = [stage for stage in stages if stage.address != self._stage_address]
        await release_stages(others, self.pipeline, self._members)
        await self._stop_stage("the pipeline was given up")

    async def _stop_stage(self, reason: str, *, lost: bool = False) -> None:
        stage, self.stage = self.stage, None
        if stage is not None:
            await stage.stop(reason, lost=lost)

    def _make_live(self, models: DraftModels) -> ObservedDraftNode:
        self._check_not_stopped()
        agent = self._agent
        stages = [stage.address for route in self._routes for stage in route.stages]
        return ObservedDraftNode(
            models.make_machine(
                agent.name,
                len(self._routes[TARGET].stages),
                self._taps or (),
                num_routes=len(self._routes),
                kept_rows=agent.config.limits.kept_rows,
                one_host=shares_host(stages, local_interfaces()),
            ),
            models.executor,
            agent.make_timing(agent.compute),
            progress_s=agent.config.deadlines.progress_s,
            observer=agent.observer,
            last_stages=self._last_stages(),
        )

    def _last_stages(self) -> dict[int, str] | None:
        """Return the member that is the last stage of each route; None in plaintext."""
        members = self._members
        if members.own is None:
            return None
        return {route.number: members.by_address[route.stages[-1].address] for route in self._routes}


def _computes(dtype: str, compute: pb.Compute | ComputeChoice) -> str:
    reason = f"; {compute.reason}" if compute.reason else ""
    return f"computes in {dtype} on {compute.device} ({compute.processor}){reason}"
