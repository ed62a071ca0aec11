"""What an emulated pipeline takes, in seconds of virtual time: a roofline for each device, and its links.

A layer takes the longer of reading its weights and KV rows and of its arithmetic, then its overhead. Where a
device's profile has measurements of the emulated model, those go before the roofline (measured_costs.py).
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

from flowedge.core.messages import Message, Prune, Segment
from flowedge.drafting.heads.recall import WINDOW
from flowedge.engine.jobs import DraftJob, ExtendDraft, Forward, GrowDraft, StageJob, Verify
from flowedge.profiling.documents.device import DeviceProfile
from flowedge.profiling.documents.link import LinkProfile
from flowedge.profiling.documents.model import (
    STORED_BYTES,
    UNPACKED,
    LayerSize,
    NGramSize,
    Quantisation,
    RecallSize,
    weight_bytes,
)
from flowedge.simulate.virtual_pipeline import DRAFT_NODE, route_of
from flowedge_testbed.costs.interpolation import read_off
from flowedge_testbed.costs.measured_costs import (
    draft_measurement,
    head_measurement,
    measured_draft_s,
    measured_layer_s,
    stage_measurements,
)
from flowedge_testbed.emulation.drafter_weights import DrafterWeights
from flowedge_testbed.emulation.emulation import EmulatedMiddle, Emulation

HEADER_BYTES = 64  # what a message takes apart from its rows, about: ids, numbers, framing
INDEX_BYTES = 4  # a row's position and parent, as varints
TOKEN_BYTES = 4
LOGIT_BYTES = 4
LEARNT_ROWS = 64  # true rows of a draft job that lookup's weight may be learnt from; the prompt has more
LOOKUP_S = 0.0002  # n-gram lookups for one tree layer; a desktop core takes 70 us for ten nodes


def product_s(
    device: DeviceProfile,
    weights: float,
    rows: int,
    quant: Quantisation = "none",
    extra_bytes: float = 0.0,
    stored_bytes: int = STORED_BYTES,
) -> float:
    """Seconds that `rows` rows take through matrices of `weights` weights in all.

    bitsandbytes unpacks every 4-bit weight: for one row inside the product; for more it writes whole matrices
    out as they were stored before and reads them back. An int4 product reads packed weights, whatever the
    number of rows.

    Args:
        extra_bytes: further memory traffic, such as the KV rows that attention reads.
        stored_bytes: of a weight that is not quantised.
    """
    traffic = weights * weight_bytes(quant, stored_bytes) + extra_bytes
    unpacking = 0.0
    if quant in UNPACKED:
        unpacking = weights / (_dequantise_rate(device) * 1e9)
        if rows > 1:
            traffic += 2 * weights * stored_bytes
    compute = 2 * rows * weights / device.flops
    return max(traffic / device.bytes_per_s, compute) + unpacking


def _dequantise_rate(device: DeviceProfile) -> float:
    if device.dequantise_gweights_s is None:
        raise ValueError(f"{device.title} runs no quantised weights")
    return device.dequantise_gweights_s


def layer_s(device: DeviceProfile, layer: LayerSize, rows: int, seen: int, quant: Quantisation) -> float:
    """Seconds of one decoder layer over `rows` rows, each of which sees at most `seen` cached rows."""
    kv = seen * layer.kv_bytes_per_row
    products = product_s(device, layer.weights, rows, quant, kv, layer.stored_bytes)
    return products + attention_s(device, layer, rows, seen) + device.layer_overhead_s


def head_s(device: DeviceProfile, weights: int, vocab: int, rows: int, stored_bytes: int) -> float:
    """Seconds of an LM head over `rows` rows: its weights are read once, its logits are written and read."""
    logits = 2 * LOGIT_BYTES * vocab * rows
    return product_s(device, weights, rows, "none", logits, stored_bytes) + device.layer_overhead_s


def attention_s(device: DeviceProfile, layer: LayerSize, rows: int, seen: int) -> float:
    """Seconds of the arithmetic of attention, two products for each row and row seen."""
    return 4 * rows * seen * layer.hidden / device.flops


class ProfileCosts:
    """The Costs of an emulation; `seed` is added to the seed of each link's jitter."""

    def __init__(self, emulation: Emulation, seed: int = 0) -> None:
        self.emulation = emulation
        self._layer = LayerSize.of(emulation.model)
        self._stored = emulation.model.stored_bytes
        widths = [emulation.row_width(stage) for stage in range(emulation.num_stages)]
        self._row_bytes = {stage: width * self._stored for stage, width in enumerate(widths)}
        self._drafter = DrafterWeights.of(emulation.model, emulation.drafter)
        self._measured = stage_measurements(emulation)
        self._measured_head = head_measurement(emulation)
        self._measured_draft = draft_measurement(emulation)
        self._jitter = [random.Random(link.seed + seed + i) for i, link in enumerate(emulation.links)]
        self._middle_jitter = [
            random.Random(middle.link.seed + seed - i) for i, middle in enumerate(emulation.middles, start=1)
        ]

    def stage_job(self, stage: int, job: StageJob) -> float:
        """All layers of the stage over the job's rows; caches are allocated for nothing."""
        if not isinstance(job, Forward):
            return 0.0
        if stage < DRAFT_NODE:
            return self._middle_forward(self._middle(stage), job)
        return self.emulation.split[stage] * self.layer(stage, job)

    def layer(self, stage: int, job: Forward) -> float:
        """One layer of the stage over the job's rows."""
        if stage < DRAFT_NODE:
            return self._middle_layer(self._middle(stage), job)
        device, measured = self.emulation.stages[stage], self._measured[stage]

        def roofline(rows: int) -> float:
            return layer_s(device, self._layer, rows, job.cached + rows, self.emulation.quant)

        def attention(seen: int) -> float:
            return attention_s(device, self._layer, 1, seen)

        if measured is None:
            return roofline(job.num_rows)
        return measured_layer_s(measured, job.num_rows, job.cached, roofline, attention)

    def draft_job(self, job: DraftJob) -> float:
        """A forward of the drafter, with its LM head where tokens are drafted, or the target's LM head."""
        if self.emulation.drafting and isinstance(job, ExtendDraft | GrowDraft):
            return self._draft_together(job)
        match job:
            case ExtendDraft() | GrowDraft():
                return self._draft_alone(job, False)
            case Verify():
                return self._verify(len(job.positions))
            case _:
                return 0.0

    def transfer(self, sender: int, message: Message) -> float:
        """How long the message occupies the link out of `sender`."""
        return self.message_bytes(sender, message) / self._link(sender).bytes_per_s

    def latency(self, sender: int) -> float:
        """The link's latency, with jitter where it has some."""
        link = self._link(sender)
        drawn = self._jitter[sender] if sender >= DRAFT_NODE else self._middle_jitter[route_of(sender) - 1]
        jitter = drawn.random() * link.jitter_ms if link.jitter_ms else 0.0
        return (link.latency_ms + jitter) / 1e3

    def row_bytes(self, sender: int) -> int:
        """Bytes of a row of hidden states out of `sender`, of the emulated width; 0 if it sends none."""
        return self._row_bytes.get(sender, 0)

    def message_bytes(self, sender: int, message: Message) -> int:
        """Bytes on the link out of `sender`."""
        match message:
            case Segment():
                per_row = self._row_bytes[sender] if message.payload.ndim > 1 else TOKEN_BYTES
                return HEADER_BYTES + message.num_rows * (per_row + INDEX_BYTES)
            case Prune():
                return HEADER_BYTES + INDEX_BYTES * len(message.retained)
            case _:
                return HEADER_BYTES

    def _middle(self, place: int) -> EmulatedMiddle:
        return self.emulation.middles[route_of(place) - 1]

    def _link(self, sender: int) -> LinkProfile:
        return self._middle(sender).link if sender < DRAFT_NODE else self.emulation.links[sender]

    def _middle_layer(self, middle: EmulatedMiddle, job: Forward) -> float:
        layer = LayerSize.of(middle.size, self._stored)
        return layer_s(middle.device, layer, job.num_rows, job.cached + job.num_rows, "none")

    def _middle_forward(self, middle: EmulatedMiddle, job: Forward) -> float:
        """All layers of a middle model, and its LM head, which answers every row."""
        size = middle.size
        head = head_s(middle.device, size.vocab * size.hidden, size.vocab, job.num_rows, self._stored)
        return middle.size.layers * self._middle_layer(middle, job) + head

    def _draft_together(self, job: ExtendDraft | GrowDraft) -> float:
        """Several drafters take their times one after the other."""
        total, learns = 0.0, any(isinstance(size, NGramSize) for size in self.emulation.drafting)
        for size in self.emulation.drafting:
            match size:
                case NGramSize():
                    total += LOOKUP_S if isinstance(job, GrowDraft) else 0.0
                case RecallSize():
                    total += self._recall()
                case _:
                    alone = replace(self.emulation, drafter=size, drafting=())
                    total += ProfileCosts(alone)._draft_alone(job, learns)
        return total

    def _draft_alone(self, job: ExtendDraft | GrowDraft, learns: bool) -> float:
        """One model's time; `learns`: true rows of the answer pass through its LM head as well."""
        if isinstance(job, ExtendDraft):
            return self._draft(len(job.next_tokens), 0, 0)
        extended = 0 if job.next_tokens is None else len(job.next_tokens)
        # The root's children are read off the forward that extends the drafter's cache.
        grown = 0 if int(job.nodes[0]) == 0 else len(job.nodes)
        learnt = extended if learns and extended <= LEARNT_ROWS else 0
        return self._draft(extended, grown, len(job.nodes) + learnt)

    def _recall(self) -> float:
        """Reading the directions and the errors of a full window, for however many rows."""
        model = self.emulation.model
        return 2 * WINDOW * model.hidden * self._stored / self.emulation.draft_node.bytes_per_s

    def _draft(self, extended: int, grown: int, nodes: int) -> float:
        """A forward over `extended` true and `grown` draft rows, then the choice of `nodes`' children."""
        if self._measured_draft is not None:
            forward_of_true = partial(self._draft_forward, grown=0)
            return measured_draft_s(self._measured_draft, extended, grown, nodes, forward_of_true)
        forward = self._draft_forward(extended, grown) if extended + grown or not nodes else 0.0
        return forward + (self._head(self._drafter.lm_head, self._drafter.vocab, nodes) if nodes else 0.0)

    def _verify(self, rows: int) -> float:
        def roofline(rows: int) -> float:
            model = self.emulation.model
            return self._head(model.vocab * model.hidden, model.vocab, rows)

        if self._measured_head is None:
            return roofline(rows)
        return read_off(self._measured_head.verify_ms, rows, roofline) / 1e3

    def _draft_forward(self, extended: int, grown: int) -> float:
        """The drafter's fc and layers over `extended` true and `grown` draft rows."""
        drafter, device = self._drafter, self.emulation.draft_node
        through_fc = extended + (grown if drafter.fc_for_draft_rows else 0)
        fc = product_s(device, drafter.fc, through_fc, stored_bytes=self._stored) if through_fc else 0.0
        return fc + drafter.layers * layer_s(device, drafter.layer, extended + grown, 0, "none")

    def _head(self, weights: int, vocab: int, rows: int) -> float:
        """An LM head of the draft node over `rows` rows."""
        return head_s(self.emulation.draft_node, weights, vocab, rows, self._stored)
