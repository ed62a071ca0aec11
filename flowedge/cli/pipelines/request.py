"""What the command line asks of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from flowedge.agent.local_cluster import check_local_stages
from flowedge.cli.options import WAIT_S, DraftingChoice, local_path
from flowedge.client import Device
from flowedge.client.assembly import PipelineSpec
from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import PathText, PipelineConfig


class PipelineRequest(PipelineConfig):
    """What the command line asks for; agents of the network serve it if neither stages nor peers are given.

    Attributes:
        model: "" until it is known: whatever a pipeline that runs has, or what the user is asked for.
        stages: number of local stage agents to start for the run.
        peers: addresses of the draft node, the stages in order, and the agents of the middle models.
        discover_s: seconds to look for agents.
        middles: middle models of a hierarchy, the smallest first, one for each agent: a model that is named
            several times in a row is divided over so many agents.
        wait_s: seconds to wait for a named draft node whose pipeline is being set up; None for a caller that
            goes on without it.
        limit_s: seconds to set a pipeline up; None for as long as there is news of it.

    Raises:
        BadRequestError: when stages and peers are both given, or the split does not fit them.
    """

    model: PathText = ""
    stages: int | None = None
    peers: tuple[str, ...] | None = None
    discover_s: float = 3.0
    middles: tuple[str, ...] = ()
    wait_s: float | None = WAIT_S
    limit_s: float | None = None

    def model_post_init(self, _: Any, /) -> None:
        if self.stages is not None and self.peers is not None:
            raise BadRequestError("give either --stages or --peers")
        if self.stages is not None:
            check_local_stages(self.stages, len(self.middles))
        if self.stage_count is not None and self.stage_count < 1:
            raise BadRequestError(
                f"--peers names {len(self.peers or ())} agents: a draft node, and {len(self.middles)} for "
                "middle models; name one agent or more for the stages as well"
            )
        check_split_count(self.split, self.stage_count)

    @property
    def is_made_already(self) -> bool:
        """Whether only a draft node is named, which has its pipeline."""
        return self.peers is not None and len(self.peers) == 1

    @property
    def stage_count(self) -> int | None:
        """The number of stages; None where it is not known before the agents are found."""
        if self.peers is None:
            return self.stages
        return None if self.is_made_already else len(self.peers) - 1 - len(self.middles)

    def spec(self, draft_node: str, others: tuple[str, ...]) -> PipelineSpec:
        """Return the pipeline over these agents, the last of which serve the middle models.

        Raises:
            BadRequestError: when there is not an agent for each middle model, and for a stage.
        """
        stages = len(others) - len(self.middles)
        if stages < 0:
            raise BadRequestError(
                f"{len(self.middles)} middle models need an agent each, but {len(others)} agents are left"
            )
        agents = zip(self.middles, others[stages:], strict=True)
        divided = groupby(agents, key=itemgetter(0))
        return PipelineSpec(
            draft_node=draft_node,
            stages=others[:stages],
            middles=tuple((model, tuple(address for _, address in own)) for model, own in divided),
            **self.settings(),
        )

    def is_served_by(self, address: str, device: Device) -> bool:
        """Return whether the device at an address is the draft node of the pipeline that is asked for."""
        middles = device.middle_addresses
        there = len(device.stage_addresses), len(middles)
        if device.config is None or there[0] == 0 or there[1] != len(self.middles):
            return False
        if self.stage_count not in (None, there[0]) or len(self.split) not in (0, there[0]):
            return False
        asked = self.completed_by(device.config)
        return asked.spec(address, (*device.stage_addresses, *middles)).is_served_by(device)

    def completed_by(self, present: PipelineConfig) -> PipelineRequest:
        """Return the request for a pipeline that exists, of whatever model if none is asked for.

        Without a model, settings that have their defaults are not asked for either.
        """
        if self.model:
            return self
        defaults = {name: field.default for name, field in PipelineRequest.model_fields.items()}
        there = present.settings()
        return self.changed(**{name: there[name] for name in there if getattr(self, name) == defaults[name]})


def split_text(split: Sequence[int]) -> str:
    """Return the layers of each stage as they are typed, such as "2,3,3"."""
    return ",".join(map(str, split))


def check_split_count(split: Sequence[int], stages: int | None) -> None:
    """Check that a split is for this number of stages; None where the number is not known yet.

    Raises:
        BadRequestError: when it is for another.
    """
    if split and stages not in (None, len(split)):
        raise BadRequestError(
            f"--split {split_text(split)} is for {len(split)} stages, but there are {stages}"
        )


def requested_pipeline(
    settings: Mapping[str, Any], drafting: DraftingChoice, **where: Any
) -> PipelineRequest:
    """Return the request for a pipeline of these settings; paths of this machine are made absolute.

    Args:
        settings: of PipelineConfig, by name.
        where: the other arguments of PipelineRequest.

    Raises:
        BadRequestError: when the pipeline makes no sense.
    """
    tokenizer = settings.get("tokenizer")
    places = {
        "model": local_path(settings["model"]) if settings["model"] else "",
        "tokenizer": local_path(tokenizer) if tokenizer else "",
        "drafter": drafting.drafter,
    }
    return PipelineRequest(**{**settings, **places}, **where)
