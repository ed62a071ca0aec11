"""What an emulated pipeline takes, in seconds of virtual time: a roofline for each device, and its links.

A layer takes the longer of reading its weights and KV rows and of its arithmetic, then its overhead.
"""

from __future__ import annotations

import random

from flowedge.messages import Message, Prune, Segment
from flowedge.runtime.jobs import DraftJob, ExtendDraft, Forward, GrowDraft, StageJob, Verify
from testbed.emulation import Emulation
from testbed.profiles.device import DeviceProfile
from testbed.profiles.model import STORED_BYTES, WEIGHT_BYTES, EagleSize, LayerSize, Quantisation

HEADER_BYTES = 64  # what a message takes apart from its rows, about: ids, numbers, framing
INDEX_BYTES = 4  # a row's position and parent, as varints
TOKEN_BYTES = 4
LOGIT_BYTES = 4


def product_s(
    device: DeviceProfile, weights: float, rows: int, quant: Quantisation = "none", extra_bytes: float = 0.0
) -> float:
    """Seconds that `rows` rows take through matrices of `weights` weights in all.

    bitsandbytes unpacks every 4-bit weight: for one row inside the product; for more it writes whole matrices
    out in 16 bits and reads them back. An int4 product reads packed weights, whatever the number of rows.

    Args:
        extra_bytes: further memory traffic, such as the KV rows that attention reads.
    """
    traffic = weights * WEIGHT_BYTES[quant] + extra_bytes
    unpacking = 0.0
    if quant in ("fp4", "nf4"):
        unpacking = weights / (_dequantise_rate(device) * 1e9)
        if rows > 1:
            traffic += 2 * weights * STORED_BYTES
    compute = 2 * rows * weights / device.flops
    return max(traffic / device.bytes_per_s, compute) + unpacking


def _dequantise_rate(device: DeviceProfile) -> float:
    if device.dequantise_gweights_s is None:
        raise ValueError(f"{device.title} runs no quantised weights")
    return device.dequantise_gweights_s


def layer_s(device: DeviceProfile, layer: LayerSize, rows: int, seen: int, quant: Quantisation) -> float:
    """Seconds of one decoder layer over `rows` rows, each of which sees at most `seen` cached rows."""
    kv = seen * layer.kv_bytes_per_row
    attention = 4 * rows * seen * layer.hidden / device.flops
    return product_s(device, layer.weights, rows, quant, kv) + attention + device.layer_overhead_s


class ProfileCosts:
    """The Costs of an emulation (see runtime/virtual.py); `seed` is added to that of each link's jitter."""

    def __init__(self, emulation: Emulation, seed: int = 0) -> None:
        self.emulation = emulation
        self._layer = LayerSize.of(emulation.model)
        self._row_bytes = emulation.model.hidden * STORED_BYTES
        self._jitter = [random.Random(link.seed + seed + i) for i, link in enumerate(emulation.links)]

    def stage_job(self, stage: int, job: StageJob) -> float:
        """All layers of the stage over the job's rows; caches are allocated for nothing."""
        return self.emulation.split[stage] * self.layer(stage, job) if isinstance(job, Forward) else 0.0

    def layer(self, stage: int, job: Forward) -> float:
        """One layer of the stage over the job's rows."""
        device = self.emulation.stages[stage]
        rows = job.num_rows
        return layer_s(device, self._layer, rows, job.cached + rows, self.emulation.quant)

    def draft_job(self, job: DraftJob) -> float:
        """A forward of the drafter, with its LM head where tokens are drafted, or the target's LM head."""
        match job:
            case ExtendDraft():
                return self._draft_forward(len(job.next_tokens))
            case GrowDraft():
                extended = 0 if job.next_tokens is None else len(job.next_tokens)
                # The root's children are read off the forward that extends the drafter's cache.
                grown = 0 if int(job.nodes[0]) == 0 else len(job.nodes)
                forward = self._draft_forward(extended + grown) if extended + grown else 0.0
                return forward + self._head(self._drafter_hidden, len(job.nodes))
            case Verify():
                return self._head(self.emulation.model.hidden, len(job.positions))
            case _:
                return 0.0

    def transfer(self, sender: int, message: Message) -> float:
        """How long the message occupies the link out of `sender`."""
        return self.message_bytes(message) / self.emulation.links[sender].bytes_per_s

    def latency(self, sender: int) -> float:
        """The link's latency, with jitter where it has some."""
        link = self.emulation.links[sender]
        jitter = self._jitter[sender].random() * link.jitter_ms if link.jitter_ms else 0.0
        return (link.latency_ms + jitter) / 1e3

    def message_bytes(self, message: Message) -> int:
        """Bytes on the wire, with hidden states of the emulated model's width in 16 bits."""
        match message:
            case Segment():
                per_row = self._row_bytes if message.payload.ndim > 1 else TOKEN_BYTES
                return HEADER_BYTES + message.num_rows * (per_row + INDEX_BYTES)
            case Prune():
                return HEADER_BYTES + INDEX_BYTES * len(message.retained)
            case _:
                return HEADER_BYTES

    @property
    def _drafter_hidden(self) -> int:
        drafter = self.emulation.drafter
        return self.emulation.model.hidden if isinstance(drafter, EagleSize) else drafter.hidden

    def _draft_forward(self, rows: int) -> float:
        drafter, device = self.emulation.drafter, self.emulation.draft_node
        if not isinstance(drafter, EagleSize):
            return drafter.layers * layer_s(device, LayerSize.of(drafter), rows, 0, "none")
        fc = 2 * self.emulation.model.hidden**2
        return product_s(device, fc, rows) + layer_s(device, self._layer, rows, 0, "none")

    def _head(self, hidden: int, rows: int) -> float:
        """An LM head over `rows` rows: its weights are read once, its logits are written and read."""
        device, vocab = self.emulation.draft_node, self.emulation.model.vocab
        logits = 2 * LOGIT_BYTES * vocab * rows
        return product_s(device, vocab * hidden, rows, "none", logits) + device.layer_overhead_s
