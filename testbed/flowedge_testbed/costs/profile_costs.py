"""What an emulated pipeline takes, in seconds of virtual time.

A layer takes the longer of reading its weights and KV rows and of its arithmetic, then its overhead
(roofline.py). Where a device's profile has measurements of the emulated model, the measurements are used
instead (measured_costs.py).
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

from flowedge.core.messages import Message, Prune, Segment
from flowedge.drafting.heads.recall import WINDOW
from flowedge.engine.jobs import DraftJob, ExtendDraft, Forward, GrowDraft, StageJob, Verify
from flowedge.profiling.documents.link import LinkProfile
from flowedge.profiling.documents.model import LayerSize
from flowedge.simulate.virtual_pipeline import DRAFT_NODE, route_of
from flowedge_testbed.costs.measured_costs import (
    draft_measurement,
    head_measurement,
    measured_draft_s,
    measured_layer_s,
    read_off,
    stage_measurements,
)
from flowedge_testbed.costs.middle_costs import MiddleCosts
from flowedge_testbed.costs.roofline import attention_s, head_s, layer_s, product_s
from flowedge_testbed.emulation.drafter_weights import DrafterWeights
from flowedge_testbed.emulation.drafting_sizes import NGramSize, RecallSize
from flowedge_testbed.emulation.emulation import Emulation

HEADER_BYTES = 64  # of a message apart from its rows, about: ids, numbers, framing
INDEX_BYTES = 4  # a row's position and parent, as varints
TOKEN_BYTES = 4
LEARNT_ROWS = 64  # most true rows of a draft job that lookup learns from; only a prompt has more
LOOKUP_S = 0.0002  # n-gram lookups for one tree layer; a desktop core takes 70 us for ten nodes


class ProfileCosts:
    """The costs of an emulation, for a virtual pipeline."""

    def __init__(self, emulation: Emulation, seed: int = 0) -> None:
        """`seed` is added to the seed of each link's jitter."""
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
        self._middles = [
            MiddleCosts(middle, self._stored, middle.link.seed + seed - i)
            for i, middle in enumerate(emulation.middles, start=1)
        ]

    def stage_job(self, stage: int, job: StageJob) -> float:
        """Return the time of all layers of a stage over the job's rows. Allocating a cache takes none."""
        if stage < DRAFT_NODE:
            return self._middle(stage).job(job)
        if not isinstance(job, Forward):
            return 0.0
        return self.emulation.split[stage] * self.layer(stage, job)

    def layer(self, stage: int, job: Forward) -> float:
        """Return the time of one layer of a stage over the job's rows."""
        if stage < DRAFT_NODE:
            return self._middle(stage).layer(job)
        device, measured = self.emulation.stages[stage], self._measured[stage]

        def roofline(rows: int) -> float:
            return layer_s(device, self._layer, rows, job.cached + rows, self.emulation.quant)

        def attention(seen: int) -> float:
            return attention_s(device, self._layer, 1, seen)

        if measured is None:
            return roofline(job.num_rows)
        return measured_layer_s(measured, job.num_rows, job.cached, roofline, attention)

    def draft_job(self, job: DraftJob) -> float:
        """Return the time of a job of the draft node.

        A draft layer is a forward of the drafter and its LM head; a verification is the target's LM head.
        """
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
        """Return how long a message occupies the link out of `sender`."""
        return self.message_bytes(sender, message) / self._link(sender).bytes_per_s

    def latency(self, sender: int) -> float:
        """Return the latency of the link out of `sender`, with the next jitter if the link has any."""
        link = self._link(sender)
        drawn = self._jitter[sender] if sender >= DRAFT_NODE else self._middle(sender).jitter
        jitter = drawn.random() * link.jitter_ms if link.jitter_ms else 0.0
        return (link.latency_ms + jitter) / 1e3

    def row_bytes(self, sender: int) -> int:
        """Return the bytes of a row of hidden states out of `sender`, which are 0 if it sends none."""
        return self._row_bytes.get(sender, 0)

    def message_bytes(self, sender: int, message: Message) -> int:
        """Return the bytes of a message on the link out of `sender`."""
        match message:
            case Segment():
                per_row = self._row_bytes[sender] if message.payload.ndim > 1 else TOKEN_BYTES
                return HEADER_BYTES + message.num_rows * (per_row + INDEX_BYTES)
            case Prune():
                return HEADER_BYTES + INDEX_BYTES * len(message.retained)
            case _:
                return HEADER_BYTES

    def _middle(self, place: int) -> MiddleCosts:
        return self._middles[route_of(place) - 1]

    def _link(self, sender: int) -> LinkProfile:
        return self._middle(sender).link if sender < DRAFT_NODE else self.emulation.links[sender]

    def _draft_together(self, job: ExtendDraft | GrowDraft) -> float:
        """Return the time of joined drafters, which run one after the other."""
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
        """Return the time of one drafter. If `learns`, true rows pass through its LM head as well."""
        if isinstance(job, ExtendDraft):
            return self._draft(len(job.next_tokens), 0, 0)
        extended = 0 if job.next_tokens is None else len(job.next_tokens)
        # The root's children are read off the forward that extends the drafter's cache.
        grown = 0 if int(job.nodes[0]) == 0 else len(job.nodes)
        learnt = extended if learns and extended <= LEARNT_ROWS else 0
        return self._draft(extended, grown, len(job.nodes) + learnt)

    def _recall(self) -> float:
        """Return the time of reading the directions and errors of a full window, for any number of rows."""
        model = self.emulation.model
        return 2 * WINDOW * model.hidden * self._stored / self.emulation.draft_node.bytes_per_s

    def _draft(self, extended: int, grown: int, nodes: int) -> float:
        """Return the time of a draft layer.

        Args:
            extended: true rows of its forward; grown: draft rows of it.
            nodes: nodes whose children are chosen.
        """
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
        """Return the time of the drafter's fc and layers over true rows (`extended`) and draft rows."""
        drafter, device = self._drafter, self.emulation.draft_node
        through_fc = extended + (grown if drafter.fc_for_draft_rows else 0)
        fc = product_s(device, drafter.fc, through_fc, stored_bytes=self._stored) if through_fc else 0.0
        return fc + drafter.layers * layer_s(device, drafter.layer, extended + grown, 0, "none")

    def _head(self, weights: int, vocab: int, rows: int) -> float:
        """Return the time of an LM head of the draft node over `rows` rows."""
        return head_s(self.emulation.draft_node, weights, vocab, rows, self._stored)
