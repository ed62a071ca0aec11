"""`flowedge profile`: measures devices and links, and writes profiles and a scenario that runs on them."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowedge.client import Client, Device
from flowedge.client.assembly import OnProgress
from flowedge.client.device import IDLE
from flowedge.core.errors import BadRequestError, DeviceError
from flowedge.device.compute import AUTO, CPU, default_threads, find_compute, negotiate_dtype
from flowedge.drafting.choice import BUNDLED, drafter_value
from flowedge.planning.measuring.measure import measure_device, measure_here, measure_link
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.measured_profiles import (
    FittedDevice,
    device_profile,
    link_profile,
    model_profile,
)
from flowedge.planning.profile.measurement import DeviceMeasurement, MeasureOptions
from flowedge.planning.profile.model import ModelProfile
from flowedge.planning.profile.profile_files import (
    SCENARIO,
    ProfileFiles,
    profile_files,
    require_free,
    write_documents,
)
from flowedge.planning.split import even_split
from flowedge.strategies.choice import OF_A_FIRST_LOOK

LOCAL_STAGES = 2  # of the scenario for a device that was measured alone
ASSUMED_LINK = "gigabit"  # between the devices of that scenario


@dataclass(frozen=True)
class ProfileOptions:
    """What to measure.

    Attributes:
        out: directory of the profiles and the scenario.
        hosts: agents in ring order, the draft node first; empty for this machine.
        link_bytes, round_trips: how much each link is measured with.
        force: whether existing files are replaced.
        dtype: of weights and hidden states; "auto" is the best that all the devices compute fast.
        device: compute device of this machine (see checked_device); agents have their own.
    """

    out: Path
    measure: MeasureOptions
    hosts: tuple[str, ...] = ()
    link_bytes: int = 32 << 20
    round_trips: int = 100
    force: bool = False
    dtype: str = AUTO
    device: str = AUTO


@dataclass(frozen=True)
class Profiled:
    """What was written: devices and links in ring order, and the scenario's path."""

    devices: tuple[FittedDevice, ...]
    links: tuple[LinkProfile, ...]
    scenario: Path


def run_profile(options: ProfileOptions, report: OnProgress) -> Profiled:
    """Measure devices and links, and write their profiles.

    Args:
        report: called with the name of a device and what is measured next.

    Raises:
        BadRequestError: when hosts are named twice or files exist, before anything is measured.
        FlowEdgeError: as `measure_device` and `measure_link` do.
    """
    repeated = sorted({host for host in options.hosts if options.hosts.count(host) > 1})
    if repeated:
        raise BadRequestError(f"{', '.join(repeated)} is named twice; a device is measured once")
    agents = [_describe(host) for host in options.hosts]
    names = [agent.name for agent in agents] or [platform.node() or "device"]
    files = profile_files(names, options.measure.model, with_links=len(names) > 1)
    require_free(options.out, files.names, force=options.force)
    options = _on_devices(options, agents)
    found = [_measure(options, index, name, report) for index, name in enumerate(names)]
    links = _measure_links(options, agents, report) if files.links else []
    devices = [device_profile(measured) for measured in found]
    model = model_profile(found[0].model)
    profiles = [*(device.profile for device in devices), *links, model]
    documents: dict[str, dict[str, Any]] = {
        name: document.model_dump(exclude_none=True, exclude_unset=True)
        for name, document in zip(files.profiles, profiles, strict=True)
    }
    documents[SCENARIO] = _scenario(options, files, model, found[0].model.times.quant)
    write_documents(options.out, documents)
    return Profiled(tuple(devices), tuple(links), options.out / SCENARIO)


def _describe(host: str) -> Device:
    with Client(host) as client:
        device = client.describe()
    if device.role != IDLE:
        raise DeviceError(
            device.name,
            f"it is a {device.role}, and only idle agents are measured; flowedge release {host} frees it",
        )
    return device


def _on_devices(options: ProfileOptions, agents: Sequence[Device]) -> ProfileOptions:
    """Return the options with the compute device of this machine, and with the dtype of all the devices."""
    fast: dict[str, Sequence[str]] = {agent.name: agent.compute.dtypes for agent in agents}
    given: dict[str, object] = {}
    if not agents:
        own = find_compute(options.device).choose(options.measure.quant)
        fast = {CPU: own.dtypes}
        given = {"compute": own.device, "threads": default_threads()}
    dtype = negotiate_dtype(fast) if options.dtype == AUTO else options.dtype
    measure = MeasureOptions(**{**options.measure.model_dump(), **given, "dtype": dtype})
    return replace(options, measure=measure)


def _measure(options: ProfileOptions, index: int, name: str, report: OnProgress) -> DeviceMeasurement:
    if options.hosts:
        return measure_device(options.hosts[index], options.measure, lambda text: report(name, text))
    return measure_here(options.measure, name, lambda text: report(name, text))


def _measure_links(
    options: ProfileOptions, agents: Sequence[Device], report: OnProgress
) -> list[LinkProfile]:
    links = []
    for index, agent in enumerate(agents):
        following = (index + 1) % len(agents)
        peer = agents[following]
        report(agent.name, f"the link to {peer.name}")
        found = measure_link(
            options.hosts[index],
            options.hosts[following],
            peer.id,
            num_bytes=options.link_bytes,
            round_trips=options.round_trips,
        )
        links.append(link_profile(agent.name, peer.name, found))
    return links


def _scenario(
    options: ProfileOptions, files: ProfileFiles, model: ModelProfile, quant: str
) -> dict[str, Any]:
    """Return a scenario in the form of testbed/flowedge_testbed/scenario.py."""
    name, drafters = options.measure.model, options.measure.drafters
    if not drafters:  # the model is emulated on the tokens of the bundled models
        name, drafters = BUNDLED, (BUNDLED,)
    devices, links = files.devices, files.links
    measured = "the devices and links measured by flowedge profile"
    if not links:
        measured = f"copies of a device measured by flowedge profile; the links are assumed ({ASSUMED_LINK})"
        stages = min(LOCAL_STAGES, model.layers)
        devices, links = (devices[0],) * (1 + stages), (ASSUMED_LINK,) * (1 + stages)
    hops = [f"v{index}" if index else "d0" for index in range(len(devices))]  # the device a link leaves
    content: dict[str, Any] = {
        "name": "measured",
        "title": f"{name} on {measured}",
        "clock": "virtual",
        "pair": {"model": name, "drafter": drafter_value(drafters)},
        "devices": {"draft_node": devices[0], "stages": list(devices[1:])},
        "links": {
            "default": {"profile": links[0]},
            "hops": {hop: {"profile": link} for hop, link in zip(hops, links, strict=True)},
        },
        "emulated": [
            {"model": files.model, "quant": quant, "split": even_split(model.layers, len(devices) - 1)}
        ],
        "strategies": list(OF_A_FIRST_LOOK),
        "datasets": {"mt_bench": "mt_bench.jsonl"},
        "temperatures": [0],
        "samples": 5,
        "max_new_tokens": 64,
        "report": {"tables": ["table1"], "plots": ["bars", "gantt"]},
    }
    if files.links:
        content["hosts"] = {"draft_node": options.hosts[0], "stages": list(options.hosts[1:])}
    return content
