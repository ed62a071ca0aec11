"""The pipelines that run on the network: found by names, released, and changed for another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flowedge.cli.pipelines.model_choice import model_label
from flowedge.cli.pipelines.planned_pipeline import describe
from flowedge.cli.pipelines.request import PipelineRequest
from flowedge.client import Device
from flowedge.client.assembly import OnProgress, assemble, release
from flowedge.client.device import IDLE
from flowedge.core.errors import BadRequestError, CapacityError, FlowEdgeError
from flowedge.core.plain_text import counted
from flowedge.weights.fetch.progress import OnTransfer

Devices = Mapping[str, Device]
"""Devices by address."""


@dataclass(frozen=True)
class RunningPipeline:
    """A pipeline on devices that were found.

    Attributes:
        label: see pipeline_label.
        devices: those of its devices that were found, the draft node first if it was.
    """

    label: str
    devices: Devices

    @property
    def draft_node(self) -> Device | None:
        first = next(iter(self.devices.values()))
        return first if first.stage_addresses else None

    @property
    def requests(self) -> int:
        """Requests that it answers, and that wait."""
        node = self.draft_node
        return 0 if node is None else node.sessions + node.waiting

    def __str__(self) -> str:
        names = ", ".join(device.name for device in self.devices.values())
        model = next(iter(self.devices.values())).model
        return f"{model_label(model) if model else self.label} on {names}"

    def release(self) -> None:
        """Have all devices that were found give up their roles.

        Raises the error of the first device that fails.
        """
        release(list(self.devices), pipeline="")


def running_on(devices: Devices) -> list[RunningPipeline]:
    """Return the pipelines that these devices are part of."""
    labels = dict.fromkeys(device.pipeline for device in devices.values() if device.role != IDLE)
    return [RunningPipeline(label, _members(label, devices)) for label in labels]


def _members(label: str, devices: Devices) -> Devices:
    found = [(address, each) for address, each in devices.items() if each.pipeline == label]
    return dict(sorted(found, key=lambda entry: (not entry[1].stage_addresses, entry[1].layers)))


def named(names: Sequence[str], devices: Devices) -> dict[str, Device]:
    """Return the devices with these names or addresses, in this order.

    Raises:
        BadRequestError: when a name is that of no device that was found, or of several.
    """
    chosen: dict[str, Device] = {}
    for name in names:
        found = {address: each for address, each in devices.items() if name in (each.name, address)}
        if len(found) != 1:
            known = ", ".join(sorted({device.name for device in devices.values()}))
            which = ", ".join(found)
            raise BadRequestError(
                f"{len(found)} devices are called {name}: {which}; give the address"
                if found
                else f"no device is called {name}; found: {known}"
            )
        chosen |= found
    return chosen


def of_names(names: Iterable[str], devices: Devices) -> list[RunningPipeline]:
    """Return the pipelines with these labels, or of which devices with these names or addresses are part.

    An idle device is part of none.

    Raises:
        BadRequestError: when a name is that of nothing that was found.
    """
    running = {pipeline.label: pipeline for pipeline in running_on(devices)}
    chosen: dict[str, RunningPipeline] = {}
    for name in names:
        label = name
        if name not in running:
            (device,) = named([name], devices).values()
            if device.role == IDLE:
                continue
            label = device.pipeline
        chosen[label] = running[label]
    return list(chosen.values())


@dataclass(frozen=True)
class ModelChange:
    """The change of a network's devices to another pipeline.

    Attributes:
        request: the new pipeline, with its model.
        devices: names of its devices, the draft node first; empty for all that are found.
        force: whether requests that run are ended.
        report, on_transfer: see assemble.
    """

    request: PipelineRequest
    devices: Sequence[str]
    force: bool
    report: OnProgress
    on_transfer: OnTransfer

    def run(self, found: Devices) -> str:
        """Release what runs on the devices, and set the new pipeline up; return what runs then, in words.

        Raises:
            BadRequestError: when a device is not found, or several pipelines run and no devices are named.
            CapacityError: when requests run there, and they may not be ended.
            FlowEdgeError: when the new pipeline cannot be set up.
        """
        chosen = named(self.devices, found) if self.devices else dict(found)
        before = running_on(chosen)
        for address, device in chosen.items():
            if len(before) == 1 and self.request.is_served_by(address, device):
                return f"{before[0]} is running already"
        if len(before) > 1 and not self.devices:
            pipelines = "; ".join(map(str, before))
            raise BadRequestError(
                f"{len(before)} pipelines run: {pipelines}; name the devices of the new pipeline with "
                "--devices, the draft node first"
            )
        self._check_idle(before)
        # The devices of a pipeline that was only in part named are freed as well.
        before = [RunningPipeline(each.label, _members(each.label, found)) for each in before]
        for pipeline in before:
            pipeline.release()
            self.report(next(iter(pipeline.devices.values())).name, f"released: {pipeline}")
        return self._set_up(chosen, before)

    def _check_idle(self, before: Sequence[RunningPipeline]) -> None:
        for pipeline in before:
            if pipeline.requests and not self.force:
                raise CapacityError(
                    f"{pipeline} has {counted(pipeline.requests, 'request')} running or waiting; try again "
                    "when they have ended, or end them with --force"
                )

    def _set_up(self, chosen: Devices, before: Sequence[RunningPipeline]) -> str:
        from flowedge.cli.pipelines.network import (  # noqa: PLC0415 (it loads what a search needs)
            plan_on_idle,
            remember,
        )

        # The draft node stays where it was, because gateways and clients know its address.
        first = [address for each in before for address in each.devices if each.draft_node is not None][:1]
        order = list(chosen) if self.devices else list(dict.fromkeys([*first, *chosen]))
        idle = {address: replace(chosen[address], role=IDLE, config=None) for address in order}
        planned = plan_on_idle(self.request, idle, self.report, lambda request: request)
        assert planned.spec is not None, "a new pipeline is planned as a whole"
        try:
            assemble(planned.spec, self.report, on_transfer=self.on_transfer)
        except FlowEdgeError:
            for pipeline in before:
                self.report("the network", f"{pipeline} was released before; flowedge use sets it up again")
            raise
        device = describe(planned.draft_node)
        remember(planned.draft_node, device)
        names = [idle[address].name for address in planned.spec.stages]
        quant = "" if device.quant in ("", "none") else f" in {device.quant}"
        layers = "+".join(map(str, device.stage_layers))
        return (
            f"{device.name} runs {model_label(device.model)}{quant}, drafter {device.drafter}, on "
            f"{counted(len(names), 'stage')} of {layers} layers: {', '.join(names)}"
        )
