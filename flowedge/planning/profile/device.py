"""Profile of a device: its roofline, which serves every model, and times measured for a single model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from flowedge.core.pipeline_config import Quantisation
from flowedge.planning.profile.model import (
    LayerSize,
    LayerSizes,
    ModelProfile,
    Size,
    SourcedDocument,
    StoredDtype,
    YamlDocument,
)

Milliseconds = Annotated[float, Field(gt=0, lt=3_600_000)]
NotNegative = Annotated[float, Field(ge=0, lt=3_600_000)]
Table = Annotated[dict[Size, Milliseconds], Field(max_length=64)]  # by rows


class MeasuredDraftTimes(YamlDocument):
    """Times of a draft node's jobs with an EAGLE head, in milliseconds.

    Attributes:
        extend_ms: by true rows, a forward of the head over them.
        grow_ms: by frontier nodes, one tree layer with the LM head and the choice of children.
        root_ms: choice of the root's children, which needs no forward of the head.
    """

    extend_ms: Table = Field(min_length=1)
    grow_ms: Table = Field(min_length=1)
    root_ms: Milliseconds


class MeasuredTimes(LayerSizes):
    """Times on one device, and the sizes, dtype and quantisation for which they hold.

    Attributes:
        cached_rows: rows in the cache, all of which each measured row saw.
        forward_ms: what each forward takes beside its layers, such as the preparation of masks.
        layer_ms: by rows, one decoder layer, computed as an agent does; with attention, and with experts,
            where layers differ.
        states_ms: by rows, which are a chain, one layer with a state; None where the model has none.
        step_ms: an update of a state more than one for each row.
        attention_ms: by rows, the part of `layer_ms` for reading the cached rows; None where it is unknown.
        layer_by_layer_ms: the layer without CUDA graphs; None where an agent uses none.
        verify_ms: by rows, LM head and sampling walk.
        draft: None where no drafter was measured.
    """

    vocab: int = Field(ge=2, le=1 << 24)
    dtype: StoredDtype
    quant: Quantisation
    cached_rows: int = Field(ge=0, le=1 << 20)
    forward_ms: NotNegative = 0
    layer_ms: Table = Field(min_length=1)
    states_ms: Table | None = None
    step_ms: NotNegative = 0
    attention_ms: Annotated[dict[Size, NotNegative], Field(min_length=1, max_length=64)] | None = None
    layer_by_layer_ms: Table | None = None
    verify_ms: Table = Field(default_factory=dict)
    draft: MeasuredDraftTimes | None = None

    def holds_for_layers(self, model: ModelProfile, quant: Quantisation) -> bool:
        """Return whether a layer of the model has the measured sizes, dtype and quantisation."""
        there, wanted = (
            (
                each.hidden,
                each.intermediate,
                each.heads,
                each.kv_heads,
                each.head_size,
                each.experts,
                each.latent,
            )
            for each in (self, model)
        )
        own, others = (None if each.states is None else each.states.kind for each in (self, model))
        return (there, own, self.dtype, self.quant) == (wanted, others, model.dtype, quant)

    def table_of(self, layer: LayerSize) -> Mapping[int, float]:
        """Return the milliseconds of a layer of the measured model, by rows."""
        return self.states_ms if layer.recurs and self.states_ms else self.layer_ms

    def holds_for_head(self, model: ModelProfile) -> bool:
        """Return whether the model's LM head, which is never quantised, has the measured sizes and dtype."""
        return (self.hidden, self.vocab, self.dtype) == (model.hidden, model.vocab, model.dtype)


class MeasuredQuantisations(LayerSizes):
    """Times of one decoder layer of these sizes in several quantisations, in milliseconds by rows.

    Attributes:
        dtype: of the rows.
        layer_ms: as an agent computes the layer; "none" is a layer in the dtype itself.
        layer_by_layer_ms: without CUDA graphs; None where an agent uses none.
    """

    dtype: StoredDtype
    layer_ms: dict[Quantisation, Table]
    layer_by_layer_ms: dict[Quantisation, Table] | None = None


class StrategyTimes(YamlDocument):
    """What a draft node does for a strategy beside computing, in milliseconds.

    Attributes:
        verified_ms: from the end of a verification until the segment that follows from it is written.
        drafted_ms: from the end of a draft layer until the next job can begin.
    """

    verified_ms: NotNegative
    drafted_ms: NotNegative


class AddedTimes(YamlDocument):
    """What a device does for a segment beside computing it, in milliseconds.

    Attributes:
        receive_ms: from the sender's last write on an immediate network until computing begins, for one row.
        send_ms: from the end of a stage's computing until one row is written.
        mib_ms: more for each MiB of rows, from encoding to reading.
        strategies: by strategy, for a draft node.
    """

    receive_ms: NotNegative
    send_ms: NotNegative
    mib_ms: NotNegative
    strategies: Annotated[dict[str, StrategyTimes], Field(max_length=64)]

    def of(self, strategy: str) -> StrategyTimes:
        """Return the times of a strategy; those of a strategy that was not measured are the largest ones."""
        known = self.strategies.get(strategy)
        if known is not None or not self.strategies:
            return known or StrategyTimes(verified_ms=0, drafted_ms=0)
        return StrategyTimes(
            verified_ms=max(times.verified_ms for times in self.strategies.values()),
            drafted_ms=max(times.drafted_ms for times in self.strategies.values()),
        )


class SharedCores(YamlDocument):
    """How agents of one thread each share the cores of a host.

    Attributes:
        cores: that agents may use.
        speed: of each agent while as many compute as there are cores, as a share of its speed alone.
    """

    cores: Size
    speed: float = Field(gt=0, le=1)

    def speed_of(self, busy: int) -> float:
        """Return the speed of each of `busy` agents that compute at the same time."""
        if busy >= self.cores:
            return self.speed * self.cores / busy
        return 1 - (1 - self.speed) * (busy - 1) / max(self.cores - 1, 1)


class Watts(YamlDocument):
    idle: float = Field(ge=0)
    busy: float = Field(gt=0)


class DeviceProfile(SourcedDocument):
    """One kind of device.

    Attributes:
        memory_gib: memory that weights and caches may use, in GiB.
        memory_bandwidth_gb_s: peak memory bandwidth in 1e9 bytes per second.
        memory_efficiency: share of the bandwidth that reading weights reaches.
        tflops: 1e12 floating-point operations per second that matrix products of 16-bit weights reach.
        layer_overhead_ms: time that a layer takes at any size (kernel launches, the interpreter).
        dequantise_gweights_s: 1e9 weights per second that are converted from 4 or 8 bits to 16 bits, without
            the memory traffic of it; "hidden" where converting takes no time beyond that traffic; None where
            the device runs no quantised weights.
        not_measured: why a value is no measurement, or is missing, by its key; None in a profile that nobody
            measured.
        added: what it does for a segment beside computing; None counts as no time.
        shared_cores: for devices that are agents of one host; None where each has a host of its own.
        measured: times of one model's layers on it, used instead of the roofline where they apply.
        quantised: times of one layer in each quantisation, to choose one by.
    """

    memory_gib: float = Field(gt=0)
    memory_bandwidth_gb_s: float = Field(gt=0)
    memory_efficiency: float = Field(gt=0, le=1)
    tflops: float = Field(gt=0)
    layer_overhead_ms: float = Field(ge=0)
    dequantise_gweights_s: Annotated[float, Field(gt=0)] | Literal["hidden"] | None = None
    watts: Watts | None = None
    added: AddedTimes | None = None
    shared_cores: SharedCores | None = None
    measured: MeasuredTimes | None = None
    quantised: MeasuredQuantisations | None = None
    not_measured: dict[str, str] | None = None

    @property
    def bytes_per_s(self) -> float:
        return self.memory_bandwidth_gb_s * 1e9 * self.memory_efficiency

    @property
    def flops(self) -> float:
        return self.tflops * 1e12
