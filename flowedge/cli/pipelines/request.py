"""What the command line asks of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.agent.local_cluster import check_local_stages
from flowedge.client import Device
from flowedge.client.assembly import NATIVE, PipelineSpec
from flowedge.core.errors import BadRequestError
from flowedge.device.compute import AUTO
from flowedge.drafting.draft_form import DEFAULT_FORM, DraftForm
from flowedge.planning.split import split_counts


@dataclass(frozen=True)
class PipelineRequest:
    """What the command line asks for; agents of the network serve it if neither stages nor peers are given.

    Attributes:
        drafter: names of the drafters to join (see drafter_names); empty for no drafter.
        stages: number of local stage agents to start for the run.
        peers: addresses of the draft node, the stages in order, and the agents of the middle models.
        discover_s: seconds to look for agents.
        middles: middle models of a hierarchy, the smallest first.
        dtype, kv, exact: as in PipelineSpec.
        tokenizer, verification, draft_form: as in PipelineSpec.

    Raises:
        BadRequestError: when stages and peers are both given, or the split does not fit them.
    """

    model: str
    drafter: tuple[str, ...]
    quant: str = "none"
    split: str | None = None
    stages: int | None = None
    peers: tuple[str, ...] | None = None
    discover_s: float = 3.0
    middles: tuple[str, ...] = ()
    dtype: str = AUTO
    kv: str = NATIVE
    exact: str = AUTO
    tokenizer: str = ""
    verification: str = AUTO
    draft_form: DraftForm = DEFAULT_FORM

    def __post_init__(self) -> None:
        if self.stages is not None and self.peers is not None:
            raise BadRequestError("give either --stages or --peers")
        if self.stages is not None:
            check_local_stages(self.stages, len(self.middles))
        if self.stage_count is not None and self.stage_count < 1:
            raise BadRequestError(
                f"--peers names {len(self.peers or ())} agents: a draft node, and {len(self.middles)} for "
                "middle models; name one agent or more for the stages as well"
            )
        stage_counts(self.split, self.stage_count)

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
        return PipelineSpec(
            draft_node=draft_node,
            stages=others[:stages],
            model=self.model,
            drafter=self.drafter,
            quant=self.quant,
            split=tuple(stage_counts(self.split)),
            middles=tuple(zip(self.middles, others[stages:], strict=True)),
            dtype=self.dtype,
            kv=self.kv,
            exact=self.exact,
            tokenizer=self.tokenizer,
            verification=self.verification,
            draft_form=self.draft_form,
        )

    def is_served_by(self, address: str, device: Device) -> bool:
        """Return whether the device at an address is the draft node of the pipeline that is asked for."""
        if not device.stage_addresses or len(device.middles) != len(self.middles):
            return False
        middles = tuple(middle for _, middle in device.middles)
        return self.spec(address, (*device.stage_addresses, *middles)).is_served_by(device)


def stage_counts(split: str | None, stages: int | None = None) -> list[int]:
    """Return the layers of each stage; empty for a split as even as possible.

    Raises:
        BadRequestError: when the split is malformed, or is not for this many stages.
    """
    counts = [] if split is None else split_counts(split)
    if counts and stages not in (None, len(counts)):
        raise BadRequestError(f"--split {split} is for {len(counts)} stages, but there are {stages}")
    return counts
