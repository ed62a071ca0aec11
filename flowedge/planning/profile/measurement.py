"""Measurements of devices and links, checked as they come off a link. Times without a unit are seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flowedge.core.errors import BadRequestError, ProtocolError
from flowedge.core.pipeline_config import MOST_NAMES, Quantisation
from flowedge.core.settings_group import SettingsGroup
from flowedge.planning.profile.device import AddedTimes, MeasuredTimes
from flowedge.planning.profile.model import LayerSizes, ModelProfile, Size, StoredDtype

MAX_REPEATS = 100
MAX_STACK_MIB = 1 << 16
MIN_STACK_MIB = 4
MAX_JSON = 1 << 20  # characters
DIGITS = 4  # significant digits of a profile

Text = Annotated[str, Field(max_length=255)]
Name = Annotated[str, Field(min_length=1, max_length=4096)]  # of a model: a path, a hub id or a word
Seconds = Annotated[float, Field(gt=0, lt=3600)]


class StrictModel(BaseModel):
    """Base of messages that cross a link as JSON: frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


class MeasureOptions(SettingsGroup):
    """What to measure, and how carefully.

    Attributes:
        drafters: names of the drafters to join (see drafter_names); empty for no drafter.
        dtype: of weights and hidden states.
        repeats: number of timings, of which the median counts.
        stack_mib: MiB of weights of the generic layers (see device/generic_layers.py).
        compute: torch device.
        sizes: of the model, which the device does not need then; no drafter and no other quantisations are
            measured.
        cuda_graphs: whether a GPU records small forwards as CUDA graphs.
    """

    model: Name
    drafters: Annotated[tuple[Name, ...], Field(max_length=MOST_NAMES)] = ()
    quant: Text = "none"
    dtype: StoredDtype = "float32"
    repeats: Annotated[int, Field(ge=1, le=MAX_REPEATS)] = 15
    stack_mib: Annotated[int, Field(ge=MIN_STACK_MIB, le=MAX_STACK_MIB)] = 256
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    compute: Annotated[str, Field(pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$")] = "cpu"
    cuda_graphs: bool = True
    sizes: ModelProfile | None = None


class LayerTime(StrictModel):
    """The time of one decoder layer over `rows` rows that see `cached` rows before them.

    Attributes:
        seconds: as an agent computes the rows.
        layer_by_layer: seconds without CUDA graphs; None where an agent uses none.
    """

    sizes: LayerSizes
    rows: Size
    cached: Annotated[int, Field(ge=0, le=1 << 20)]
    seconds: Seconds
    layer_by_layer: Seconds | None = None


class ModelTimes(StrictModel):
    """The times of one model on the device.

    Attributes:
        num_layers: layers of the whole model.
        timed_layers: layers of the block that was timed.
    """

    model: Annotated[str, Field(max_length=4096)]
    num_layers: Size
    timed_layers: Size
    tied_embedding: bool
    times: MeasuredTimes


class DeviceMeasurement(StrictModel):
    """A device, and every time that was taken on it.

    Attributes:
        processor: name by torch or the operating system.
        dtype: of all weights that are not quantised.
        memory_available: bytes, before anything was loaded.
        added: what surrounds the computing of a segment.
        layers: generic layers in the dtype, to fit a roofline to.
        quantised: by quantisation, generic layers of one size; "none" is the dtype.
        quant_problems: by quantisation that could not be measured, why.
    """

    name: Text
    kind: Text
    processor: Text
    version: Text
    torch_version: Text
    dtype: StoredDtype
    threads: Size
    repeats: Size
    memory_available: Annotated[int, Field(ge=1)]
    model: ModelTimes
    added: AddedTimes
    layers: Annotated[tuple[LayerTime, ...], Field(max_length=256)]
    quantised: dict[Quantisation, Annotated[tuple[LayerTime, ...], Field(max_length=64)]]
    quant_problems: dict[Quantisation, Text] = Field(default_factory=dict)


class LinkMeasurement(StrictModel):
    """One direction of a link, as its sender and its receiver measured it.

    Attributes:
        bytes, seconds: what arrived after the warm-up, and how long it took.
        round_trips: times of TCP handshakes.
    """

    bytes: Annotated[int, Field(ge=1)]
    seconds: Seconds
    round_trips: Annotated[tuple[Seconds, ...], Field(min_length=1, max_length=1000)]

    @property
    def bits_per_s(self) -> float:
        return 8 * self.bytes / self.seconds


def milliseconds(table: Mapping[int, float]) -> dict[int, float]:
    """Convert a table of seconds by rows."""
    return {rows: short(seconds * 1e3) for rows, seconds in sorted(table.items())}


def short(value: float) -> float:
    """Return the value with as many digits as profiles have."""
    return float(f"{value:.{DIGITS}g}")


def read_sizes(text: str) -> ModelProfile:
    """Read the sizes of a model in a request.

    Raises:
        BadRequestError: when they are malformed.
    """
    try:
        return ModelProfile.model_validate_json(text)
    except ValidationError as error:
        raise BadRequestError(f"the sizes of the model cannot be read: {_reasons(error)}") from error


def read_measurement(text: str, device: str) -> DeviceMeasurement:
    """Read the measurement that a device has sent.

    Raises:
        ProtocolError: when it cannot be read.
    """
    if len(text) > MAX_JSON:
        raise ProtocolError(
            f"{device} sent a measurement of {len(text)} characters; at most {MAX_JSON} are read"
        )
    with _refused(f"{device} sent a measurement that cannot be read"):
        return DeviceMeasurement.model_validate_json(text)


def link_measurement(device: str, **given: object) -> LinkMeasurement:
    """Read the measurement of a link that a device has sent.

    Raises:
        ProtocolError: when it cannot be read.
    """
    with _refused(f"{device} sent a measurement of a link that cannot be read"):
        return LinkMeasurement.model_validate(given)


@contextmanager
def _refused(refusal: str) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise ProtocolError(f"{refusal}: {_reasons(error)}") from error


def _reasons(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors()[:5])
