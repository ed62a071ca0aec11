"""Profile of a pipeline: a model, the devices that hold it and the links between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE, Quantisation, VerificationPlace
from flowedge.models.taps import Taps, eagle3_taps, row_width, spread_taps, taps_within
from flowedge.planning.profile.device import DeviceProfile, Watts
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.model import (
    READ_AS_STORED,
    BlockSize,
    DrafterSize,
    DraftingSize,
    Eagle3Size,
    ModelProfile,
    NGramSize,
    PricedQuant,
    SmallModelSize,
)
from flowedge.planning.split import even_split, layer_ranges

SHORT_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True)
class MiddleProfile:
    """A middle model, whose layers are divided over one device or several.

    Attributes:
        links: link i leaves device i.
    """

    size: SmallModelSize
    devices: tuple[DeviceProfile, ...]
    links: tuple[LinkProfile, ...]

    def __post_init__(self) -> None:
        """Raise BadRequestError when there are more devices than layers."""
        even_split(self.size.layers, len(self.devices))

    @property
    def split(self) -> list[int]:
        """The layers of each device, as even as possible."""
        return even_split(self.size.layers, len(self.devices))

    def sizes(self, prose: set[str]) -> dict[str, Any]:
        """Return all its numbers; `prose` are the fields to leave out."""
        return {
            "size": self.size.model_dump(exclude=prose),
            "devices": [device.model_dump(exclude=prose) for device in self.devices],
            "links": [link.model_dump(exclude=prose) for link in self.links],
        }


@dataclass(frozen=True)
class PipelineProfile:
    """Everything that time and memory depend on.

    Attributes:
        drafter: the model that drafts.
        drafting: the joined drafters, if there are several or none of them is a model; empty otherwise.
        stages: the devices of the stages; split: the number of layers on each.
        links: link i leaves stage i; the last link leaves the draft node.
        middles: middle models of a hierarchy, in the order of their routes.
        verification: where the target's tokens are drawn.
        keeps_taps: whether stages keep what they tap of draft rows (see Open.keeps_taps).
        draft_tokens: the number of the model's tokens that a drafter without a vocabulary of its own
            proposes; None for all.
        draft_quant: the format of the drafters' layers, and of the LM head that they propose with.
        beside: the stage whose device is the draft node's as well, as PipeInfer's head node is that of the
            first stage; None for a draft node on a device of its own.
    """

    model: ModelProfile
    quant: Quantisation
    drafter: DrafterSize
    draft_node: DeviceProfile
    stages: tuple[DeviceProfile, ...]
    links: tuple[LinkProfile, ...]
    split: tuple[int, ...]
    drafting: tuple[DraftingSize, ...] = ()
    middles: tuple[MiddleProfile, ...] = ()
    verification: VerificationPlace = DRAFT_NODE
    keeps_taps: bool = False
    draft_tokens: int | None = None
    draft_quant: PricedQuant = "none"
    beside: int | None = None

    def __post_init__(self) -> None:
        if len(self.split) != len(self.stages):
            raise BadRequestError(
                f"the split {list(self.split)} is for {len(self.split)} stages; there are {len(self.stages)}"
            )
        if sum(self.split) != self.model.layers or min(self.split) < 1:
            raise BadRequestError(
                f"the split {list(self.split)} is not the {self.model.layers} layers of {self.model.title}, "
                "at least one a stage"
            )
        if len(self.links) != len(self.stages) + 1:
            raise BadRequestError(f"{len(self.links)} links for {len(self.stages)} stages and a draft node")
        if self.beside is not None and self.stages[self.beside] != self.draft_node:
            raise BadRequestError(
                f"a draft node that computes layers is one device, but the draft node is a "
                f"{self.draft_node.title} and stage {self.beside + 1} a {self.stages[self.beside].title}; "
                "name the same twice"
            )
        for device in (self.draft_node, *self.stages):
            if self.quant not in READ_AS_STORED and device.dequantise_gweights_s is None:
                raise BadRequestError(
                    f"{device.title} has no dequantise_gweights_s, so it runs no {self.quant}"
                )
        if self.draft_quant == "int8" and self.draft_node.dequantise_gweights_s is None:
            raise BadRequestError(
                f"{self.draft_node.title} has no dequantise_gweights_s, so it drafts in no int8"
            )

    @property
    def title(self) -> str:
        """The model's name."""
        return self.model.title

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    @property
    def one_host(self) -> bool:
        """Whether all devices are agents of one host, which share its cores."""
        shares = self.draft_node.shared_cores is not None
        return shares and all(device == self.draft_node for device in self.stages)

    @property
    def looks_up(self) -> bool:
        """Whether the drafters are models joined with lookup."""
        lookup = [isinstance(size, NGramSize) for size in self.drafting]
        return any(lookup) and not all(lookup)

    @property
    def drafters(self) -> tuple[DraftingSize, ...]:
        """All joined drafters, or the only one."""
        return self.drafting or (self.drafter,)

    @property
    def taps(self) -> Taps:
        """The layers of the model whose inputs travel with its rows, for a drafter that needs them.

        Raises:
            BadRequestError: when the model has too few layers for that drafter.
        """
        layers, tapped = self.model.layers, set[int]()
        for size in self.drafters:
            if isinstance(size, Eagle3Size):
                tapped |= {*eagle3_taps(layers)}
            elif isinstance(size, BlockSize):
                tapped |= {*spread_taps(layers, size.taps)}
        return tuple(sorted(tapped))

    @property
    def needs_features(self) -> bool:
        """Whether a drafter is given the target's hidden states."""
        return any(not isinstance(size, SmallModelSize | NGramSize) for size in self.drafters)

    @property
    def verifier(self) -> DeviceProfile:
        """The device that computes the target's LM head."""
        return self.stages[-1] if self.verification == LAST_STAGE else self.draft_node

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """The first layer of each stage, and the one behind its last."""
        return layer_ranges(self.split)

    @property
    def keeping_blocks(self) -> list[tuple[int, int]]:
        """The layers of the stages that can keep what they tap: not of a last stage that draws."""
        return self.blocks[: self.num_stages - int(self.verification == LAST_STAGE)]

    def row_width(self, stage: int) -> int:
        """Return the width of the rows that leave a stage: hidden state, and what is carried or tapped."""
        stop = self.blocks[stage][1]
        return row_width(self.model.hidden, self.taps, stop) + self.model.carried_into(stop)

    def draft_row_width(self, stage: int) -> int:
        """Return the width of the draft rows that leave a stage, without what stages keep."""
        if not self.keeps_taps:
            return self.row_width(stage)
        start, stop = self.blocks[stage]
        tapped = 0 if stage < len(self.keeping_blocks) else len(taps_within(self.taps, start, stop))
        return self.model.hidden * (1 + tapped) + self.model.carried_into(stop)

    @property
    def mbps(self) -> float | None:
        """The rate of the slowest link, in 1e6 bits a second."""
        of_middles = (link for middle in self.middles for link in middle.links)
        return min(link.mbps for link in (*self.links, *of_middles))

    @property
    def side_counts(self) -> tuple[int, ...]:
        """The number of devices of each middle model."""
        return tuple(len(middle.devices) for middle in self.middles)

    @property
    def watts(self) -> tuple[Watts | None, ...]:
        """The power of the draft node, of the stages and of the middle models' devices, in this order."""
        middles = (device for middle in self.middles for device in middle.devices)
        return tuple(device.watts for device in (self.draft_node, *self.stages, *middles))

    def sizes(self) -> dict[str, Any]:
        """Return all its numbers without names, so that models of the same size share their runs."""
        prose = {"title", "source", "drafters", "not_measured"}
        middles = [middle.sizes(prose) for middle in self.middles]
        return {
            "model": self.model.model_dump(exclude=prose),
            "quant": self.quant,
            "drafter": self.drafter.model_dump(),
            "drafting": [size.model_dump() for size in self.drafting],
            "draft_form": [self.draft_tokens, self.draft_quant],
            "devices": [device.model_dump(exclude=prose) for device in (self.draft_node, *self.stages)],
            "links": [link.model_dump(exclude=prose) for link in self.links],
            "split": list(self.split),
            "verification": self.verification,
            **({"middles": middles} if middles else {}),
            **({"keeps_taps": True} if self.keeps_taps else {}),
            **({"beside": self.beside} if self.beside is not None else {}),
        }

    @property
    def format_name(self) -> str:
        """The format of a layer's weights: fp16, bf16, fp32, or the quantisation."""
        return SHORT_DTYPES[self.model.dtype] if self.quant == "none" else self.quant

    @property
    def drafter_format_name(self) -> str:
        """The form of the drafter for names of pipelines, such as "-32000-tokens-int4"; empty if whole."""
        tokens = "" if self.draft_tokens is None else f"-{self.draft_tokens}-tokens"
        return tokens if self.draft_quant == "none" else f"{tokens}-{self.draft_quant}"
