"""What a device can do."""

from __future__ import annotations

from pydantic import Field

from flowedge.profiling.documents.document import YamlDocument
from flowedge.profiling.documents.measured import MeasuredTimes


class Watts(YamlDocument):
    """Power drawn, in watts."""

    idle: float = Field(ge=0)
    busy: float = Field(gt=0)


class DeviceProfile(YamlDocument):
    """One kind of device.

    Attributes:
        memory_gib: memory that weights and caches may use, in GiB.
        memory_bandwidth_gb_s: peak memory bandwidth in 1e9 bytes a second; memory_efficiency: the share of it
            that reading weights reaches.
        tflops: 1e12 floating-point operations a second that matrix products of 16-bit weights reach.
        layer_overhead_ms: time a layer takes however small it is (kernel launches, the interpreter).
        dequantise_gweights_s: 1e9 weights of 4 or 8 bits a second that are turned into 16 bits, beyond the
            memory traffic of doing so; None where the device runs no quantised weights.
        measured: times of one model's layers on it, which go before the roofline where they apply.
    """

    title: str
    source: str
    memory_gib: float = Field(gt=0)
    memory_bandwidth_gb_s: float = Field(gt=0)
    memory_efficiency: float = Field(gt=0, le=1)
    tflops: float = Field(gt=0)
    layer_overhead_ms: float = Field(ge=0)
    dequantise_gweights_s: float | None = Field(default=None, gt=0)
    watts: Watts | None = None
    measured: MeasuredTimes | None = None

    @property
    def bytes_per_s(self) -> float:
        return self.memory_bandwidth_gb_s * 1e9 * self.memory_efficiency

    @property
    def flops(self) -> float:
        return self.tflops * 1e12

    @property
    def layer_overhead_s(self) -> float:
        return self.layer_overhead_ms / 1e3

    @property
    def memory_bytes(self) -> float:
        return self.memory_gib * 2**30
