"""What a plan is for: a model, its form, and the sessions that have to fit."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from flowedge.core.pipeline_config import Quantisation
from flowedge.planning.drafter_weights import DrafterWeights
from flowedge.planning.measured_costs import read_off
from flowedge.planning.measuring.scripted_models import HITS
from flowedge.planning.memory_fit import ACTIVATION_ROWS, states_bytes
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.model import READ_AS_STORED, LayerSize, ModelProfile, weight_bytes
from flowedge.planning.roofline import head_s, layer_s

SEGMENT_ROWS = 16  # of the segment by which devices are compared
DRAFT_LAYERS, FRONTIER = 2, 8  # of the tree that is drafted for it
LEAST_LAYERS_BYTES = 64 << 20  # smaller models take milliseconds anywhere
SEEN_ROWS = 512  # of the session that is compared


@dataclass(frozen=True)
class Goal:
    """A model to serve.

    Attributes:
        drafter: name among the model's drafters; "" for the first.
        context: tokens of a session; sessions: that have to fit at the same time.
        hits: how often the model draws the drafter's first, second and third choice.
        lookup: whether drafts are looked up in the text, which takes no time and no memory to speak of.
    """

    model: ModelProfile
    quant: Quantisation = "none"
    drafter: str = ""
    context: int = 4096
    sessions: int = 1
    hits: tuple[float, ...] = HITS
    lookup: bool = False

    @property
    def rows(self) -> int:
        """KV rows of all sessions."""
        return self.context * self.sessions

    @property
    def drafter_name(self) -> str:
        return self.drafter or next(iter(self.model.drafters))

    @property
    def table_bytes(self) -> float:
        """Bytes of the embedding, and of the LM head."""
        return float(self.model.vocab * self.model.hidden * self.model.stored_bytes)

    @property
    def segment_bytes(self) -> float:
        """Bytes of the segment by which devices are compared."""
        return float(SEGMENT_ROWS * self.model.hidden * self.model.stored_bytes)

    @cached_property
    def layer_bytes(self) -> float:
        """Bytes of a layer with the KV rows or the states of all sessions; the mean, where layers differ."""
        return self._most_bytes[-1] / self.model.layers

    @cached_property
    def _most_bytes(self) -> list[float]:
        """The bytes of so many layers that follow each other, of the largest such run: from 0 to all."""
        model, stored = self.model, weight_bytes(self.quant, self.model.stored_bytes)
        layers = [model.kinds(index, index + 1)[0][0] for index in range(model.layers)]
        each = [
            layer.weights * stored + layer.kv_bytes_per_row * self.rows + states_bytes(layer) * self.sessions
            for layer in layers
        ]
        until = [0.0, *accumulate(each)]
        runs = range(model.layers + 1)
        return [
            max(until[start + run] - until[start] for start in range(model.layers - run + 1)) for run in runs
        ]

    @property
    def is_worth_measuring(self) -> bool:
        """Whether the layers are so large that it matters which device has how many of them."""
        return self.model.layers * self.layer_bytes > LEAST_LAYERS_BYTES

    def runs_on(self, device: DeviceProfile) -> bool:
        """Return whether a device computes layers in this quantisation."""
        return self.quant in READ_AS_STORED or device.dequantise_gweights_s is not None

    def most_layers(self, device: DeviceProfile, beside: float = 0.0) -> int:
        """Return how many layers a stage on a device can hold.

        beside: bytes of what else it holds: the embedding, the LM head, the parts of a draft node.
        """
        left = device.memory_gib * 2**30 - self._stage_bytes - beside
        return max(bisect_right(self._most_bytes, left) - 1, 0) if self.runs_on(device) else 0

    @cached_property
    def _stage_bytes(self) -> float:
        """Bytes that a stage holds beside its layers."""
        model = self.model
        activations = ACTIVATION_ROWS * max(model.intermediate, model.hidden) * model.stored_bytes
        unpacked = (
            0 if self.quant in READ_AS_STORED else model.hidden * model.intermediate * model.stored_bytes
        )
        return float(activations + unpacked)

    @cached_property
    def draft_node_bytes(self) -> float:
        """Bytes that a draft node holds."""
        model = self.model
        activations = ACTIVATION_ROWS * max(model.intermediate, model.hidden) * model.stored_bytes
        if self.lookup:
            return self.table_bytes + activations
        drafter = DrafterWeights.of(model, model.drafters[self.drafter_name])
        kv = drafter.layers * drafter.layer.kv_bytes_per_row * self.rows
        return self.table_bytes + drafter.held_bytes(model.stored_bytes) + kv + activations

    def layer_time_s(self, device: DeviceProfile, rows: int = SEGMENT_ROWS) -> float:
        """Return the seconds of a layer over so many rows, measured ones if there are.

        Where layers differ, it is the mean of all.
        """
        kinds = self.model.kinds()
        return sum(self._time_s(device, layer, rows) * count for layer, count in kinds) / self.model.layers

    def _time_s(self, device: DeviceProfile, layer: LayerSize, rows: int) -> float:
        found = device.measured
        if found is not None and not layer.is_dense and found.holds_for_layers(self.model, self.quant):
            return read_off(found.table_of(layer), rows, float) / 1e3
        return layer_s(device, layer, rows, rows if layer.recurs else SEEN_ROWS, self.quant)

    def head_time_s(self, device: DeviceProfile, rows: int = SEGMENT_ROWS) -> float:
        """Return the seconds of the LM head over so many rows, measured ones if there are."""
        model, found = self.model, device.measured
        if found is not None and found.verify_ms and found.holds_for_head(model):
            return read_off(found.verify_ms, rows, float) / 1e3
        return head_s(device, model.vocab * model.hidden, model.vocab, rows, model.stored_bytes)

    def draft_time_s(self, device: DeviceProfile) -> float:
        """Return the seconds in which a device drafts a segment."""
        if self.lookup:
            return 0.0
        model, stored = self.model, self.model.stored_bytes
        drafter = DrafterWeights.of(model, model.drafters[self.drafter_name])
        forward_s = drafter.layers * layer_s(device, drafter.layer, FRONTIER, 0, "none")
        proposals_s = head_s(device, drafter.lm_head, drafter.vocab, FRONTIER, stored)
        return DRAFT_LAYERS * (forward_s + proposals_s)
