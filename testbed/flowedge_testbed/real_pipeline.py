"""A pipeline of the agents that a scenario names under `hosts`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowedge.client.assembly import PipelineSpec
from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import Quantisation, VerificationChoice, drafter_label
from flowedge.engine.executors.draft_models import PREFILL_ROWS
from flowedge.planning.profile.device import Watts
from flowedge.planning.profile.pipeline import SHORT_DTYPES
from flowedge_testbed.emulation.place import Devices, as_names
from flowedge_testbed.profiles import library
from flowedge_testbed.scenario import OPTION, Scenario


@dataclass(frozen=True)
class RealPipeline:
    """Agents and the models that they serve.

    Attributes:
        devices: titles of the draft node, of each stage and of each middle model's, with their addresses.
        watts: power of the same devices; None if a device has no profile.
    """

    spec: PipelineSpec
    quant: Quantisation
    devices: tuple[str, ...]
    watts: tuple[Watts | None, ...]

    @property
    def title(self) -> str:
        """The model's name."""
        return self.spec.model.rstrip("/").rsplit("/", 1)[-1]

    @property
    def name(self) -> str:
        """The model's name with the format of its layers."""
        dtype = SHORT_DTYPES.get(self.spec.dtype, self.spec.dtype)
        return f"{self.title}-{dtype if self.quant == 'none' else self.quant}"

    @property
    def num_stages(self) -> int:
        return len(self.spec.stages)

    @property
    def verification(self) -> VerificationChoice:
        """Where the target's tokens are drawn; auto where the hosts measure that it takes less time."""
        return self.spec.verification

    @property
    def side_counts(self) -> tuple[int, ...]:
        """The number of agents of each middle model."""
        return tuple(len(addresses) for _, addresses in self.spec.middles)

    @property
    def hosts(self) -> str:
        """The devices with the names of their places: D0 x (a:1), V1 y (b:1), M1 z (c:1)."""
        stages = [f"V{number}" for number in range(1, 1 + self.num_stages)]
        names = ["D0", *stages, *(f"M{number}" for number in range(1, 1 + sum(self.side_counts)))]
        return ", ".join(f"{name} {device}" for name, device in zip(names, self.devices, strict=True))

    @property
    def mbps(self) -> float | None:
        """The rate of the slowest link: unknown."""
        return None

    def drawing(self, choice: VerificationChoice) -> RealPipeline:
        """Return the pipeline whose tokens are drawn at a place."""
        return replace(self, spec=self.spec.changed(verification=choice))

    def sizes(self) -> dict[str, Any]:
        """Return everything known here that a run on the pipeline depends on."""
        return {
            "hosts": [self.spec.draft_node, *self.spec.stages],
            **({"middles": self.spec.middles} if self.spec.middles else {}),
            "model": self.spec.model,
            "drafter": drafter_label(self.spec.drafters),
            "quant": self.quant,
            "dtype": self.spec.dtype,
            "split": list(self.spec.split),
            "verification": self.spec.verification,
            "watts": [None if watts is None else watts.model_dump() for watts in self.watts],
        }


def real_pipeline(scenario: Scenario, beside: Path) -> RealPipeline:
    """Return the pipeline of a scenario; `beside` is the directory that .yaml profiles are relative to.

    Raises:
        BadRequestError: when real hosts cannot carry out the scenario.
    """
    hosts = scenario.hosts
    if hosts is None:
        raise BadRequestError(
            f"scenario {scenario.name} names no hosts; --clock real runs on agents: give the addresses of "
            "the draft node and the stages under hosts (see scenarios/lan-template.yaml)"
        )
    emulation = sorted(axis for axis in scenario.sweep if not axis.startswith(OPTION))
    if emulation:
        raise BadRequestError(
            f"sweep: {', '.join(emulation)} cannot be varied on real hosts; the real clock sweeps "
            f"{OPTION}NAME only"
        )
    if len(scenario.emulated) > 1:
        raise BadRequestError(
            f"emulated: the scenario has {', '.join(entry.model for entry in scenario.emulated)}; real hosts "
            "run one model, that of --model: leave one or none"
        )
    if scenario.prefill_rows != PREFILL_ROWS:
        raise BadRequestError(
            f"prefill_rows is {scenario.prefill_rows}; agents prefill in chunks of {PREFILL_ROWS} rows"
        )
    if hosts.split is not None and len(hosts.split) != len(hosts.stages):
        raise BadRequestError(
            f"hosts.split is for {len(hosts.split)} stages, but hosts.stages has {len(hosts.stages)}"
        )
    if len(hosts.middles) != len(scenario.pair.middles):
        raise BadRequestError(
            f"hosts.middles is for {len(hosts.middles)} middle models, but the pair has "
            f"{len(scenario.pair.middles)} (--middle DIR,...): give an agent, or a list of agents, for each"
        )
    spec = PipelineSpec(
        draft_node=hosts.draft_node,
        stages=tuple(hosts.stages),
        middles=tuple(zip(scenario.pair.middles, map(as_names, hosts.middles), strict=True)),
        model=scenario.pair.model,
        drafter=scenario.pair.drafter,
        quant=hosts.quant,
        dtype=hosts.dtype,
        split=tuple(hosts.split or ()),
    )
    titles, watts = _profiled(scenario.devices, spec, beside)
    return RealPipeline(spec, hosts.quant, titles, watts)


def _profiled(
    devices: Devices | None, spec: PipelineSpec, beside: Path
) -> tuple[tuple[str, ...], tuple[Watts | None, ...]]:
    """Return the title and the power of each host: its address and None if it has no profile."""
    addresses = (spec.draft_node, *spec.stages, *spec.middle_addresses)
    if devices is None:
        return addresses, tuple(None for _ in addresses)
    middles = [name for each in devices.middles for name in as_names(each)]
    names = [devices.draft_node, *devices.names(None), *middles]
    if len(names) != len(addresses):
        raise BadRequestError(
            f"devices has {len(names) - 1} stages and middles, but hosts has {len(addresses) - 1}; give a "
            "profile for each host, or no devices"
        )
    profiles = [library.device(name, beside) for name in names]
    titles = tuple(f"{profile.title} ({at})" for profile, at in zip(profiles, addresses, strict=True))
    return titles, tuple(profile.watts for profile in profiles)
