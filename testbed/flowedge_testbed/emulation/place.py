"""A place where a pipeline may stand, as a scenario gives it: devices, links and a model, by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from flowedge.core.pipeline_config import Quantisation
from flowedge.planning.profile.model import PricedQuant, YamlDocument

Count = Annotated[int, Field(ge=1)]
VocabularyPart = Annotated[float, Field(gt=0)]  # at most 1: a share of the tokens; above: their number


class Stages(YamlDocument):
    """A number of stages on the same kind of device."""

    device: str
    count: Count


class Devices(YamlDocument):
    """Device profiles by name.

    Attributes:
        stages: in the order of the pipeline.
        middles: in the order of the middle models in `pair`; a list for a model that is divided.
        head_computes: whether the draft node is the first stage too, as PipeInfer's head node is, or the last
            one (`last`), and shares its processor and its memory between the two. The link out of d0, or out
            of the last stage, is then within the device.
    """

    draft_node: str
    stages: Stages | Annotated[list[str], Field(min_length=1)]
    middles: list[str | Annotated[list[str], Field(min_length=1)]] = Field(default_factory=list)
    head_computes: bool | Literal["last"] = False

    def beside(self, stages: int) -> int | None:
        """Return the stage, of so many, that is on the draft node's device; None if there is none."""
        if self.head_computes == "last":
            return stages - 1
        return 0 if self.head_computes else None

    def names(self, count: int | None) -> list[str]:
        """Return the devices of the stages. If `count` is given, cut or repeat the list to that length."""
        listed = [self.stages.device] * self.stages.count if isinstance(self.stages, Stages) else self.stages
        return listed if count is None else [listed[i % len(listed)] for i in range(count)]


def as_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return a name, or a list of names, as names."""
    return (given,) if isinstance(given, str) else tuple(given)


class LinkChoice(YamlDocument):
    """A link profile by name. Values given here replace those of the profile."""

    profile: str
    mbps: float | None = Field(default=None, gt=0)
    latency_ms: float | None = Field(default=None, ge=0)
    jitter_ms: float | None = Field(default=None, ge=0)
    seed: int | None = Field(default=None, ge=0)


class Links(YamlDocument):
    """The links of a pipeline.

    Attributes:
        default: the link that leaves each device.
        hops: other links, by the name of the device that they leave: d0, v1, v2, ..., m1, ...
    """

    default: LinkChoice
    hops: dict[str, LinkChoice] = Field(default_factory=dict)


class Emulated(YamlDocument):
    """A model whose costs are emulated.

    Attributes:
        drafter: the drafter of the model's profile that is priced; the profile's first if not given.
        middles: the small language models of the profile that the middle models are priced as, by name.
        split: layers of each stage; if not given, as even as possible, with fewer beside the LM head.
        kept_taps: whether stages keep what they tap of draft rows for an EAGLE-3 head until the rows are
            accepted; if not given, where that saves time. On the replay clock only.
        draft_vocabulary: the part of the model's vocabulary that the drafter proposes: a share of its tokens,
            or their number if it is above 1; all tokens if not given.
        draft_quant: the format of the drafter's layers, and of the LM head that it proposes with.
    """

    model: str
    quant: Quantisation = "none"
    kept_taps: bool | None = None
    drafter: str | None = None
    draft_vocabulary: VocabularyPart | None = None
    draft_quant: PricedQuant = "none"
    middles: list[str] = Field(default_factory=list)
    split: list[Count] | None = None


class PlaceEvent(YamlDocument):
    """A change of a device, or of the link out of a device, in the middle of a request.

    It replaces what an earlier event has set of the same device or link: a later `slower: 1` ends a
    `slower: 2`, and `add_ms: 0` a delay.

    Attributes:
        at_s: when it happens, in seconds from when the request is handed to the pipeline; under a load, from
            when the load begins.
        device: the device that changes: d0, v1, v2, ..., m1, ... Where `head_computes`, d0 and a stage are
            one device, and an event for each of them changes it.
        link: the device whose outgoing link changes, by the same names.
        slower: the factor by which computing, or transfers over the link, take longer than by the profile.
        add_ms: milliseconds by which the link's latency is above the profile's.
    """

    at_s: float = Field(ge=0, allow_inf_nan=False)
    device: str | None = None
    link: str | None = None
    slower: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    add_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _changes_one_thing(self) -> PlaceEvent:
        if (self.device is None) == (self.link is None):
            raise ValueError("an event changes a device or a link: give the one or the other")
        if self.device is not None and self.add_ms is not None:
            raise ValueError(
                f"add_ms is of links: give link: {self.device} for the link that leaves {self.device}, or "
                "slower for the device"
            )
        if self.slower is None and self.add_ms is None:
            raise ValueError(f"nothing changes at {self.changed}: give slower, or add_ms for a link")
        return self

    @property
    def changed(self) -> str:
        """The device that changes, or whose outgoing link does."""
        return self.device or self.link or ""


def from_the_start(events: Iterable[PlaceEvent]) -> tuple[PlaceEvent, ...]:
    """Return events, in the order of their times, that have the effect of all these from the start.

    A run with them tells what a method reaches that knew from the start how the place changes.
    """
    ordered = sorted(events, key=lambda event: event.at_s)
    return tuple(event.model_copy(update={"at_s": 0.0}) for event in ordered)


class Place(YamlDocument):
    """One emulated pipeline of a scenario that has several on different devices.

    Attributes:
        events: what changes in the middle of each request.
    """

    devices: Devices
    links: Links
    emulated: Emulated
    events: list[PlaceEvent] = Field(default_factory=list)

    @model_serializer(mode="wrap")
    def _write_events(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out events if there are none, so that older results keep their settings."""
        written: dict[str, Any] = write(self)
        return {key: value for key, value in written.items() if key != "events" or value}
