"""What a pipeline takes by its profile, in seconds of virtual time.

A layer takes the longer of reading its weights and KV rows and of its arithmetic, then its overhead
(roofline.py). Where a device's profile has measurements of the model, the measurements are used
instead (measured_costs.py).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from flowedge.core.messages import Message, Prune, Segment, SegmentBatch, Tapped, session_messages
from flowedge.core.request import DEFAULT_STRATEGY
from flowedge.drafting.heads.recall import WINDOW
from flowedge.drafting.proposal_head import MOST_SEEN
from flowedge.engine.jobs import (
    DraftBatch,
    DraftJob,
    ExtendDraft,
    Forward,
    ForwardBatch,
    GrowDraft,
    StageJob,
    Verify,
)
from flowedge.models.recurrent.row_steps import steps_of_drafts
from flowedge.planning.drafter_weights import DrafterWeights
from flowedge.planning.measured_costs import (
    draft_measurement,
    head_measurement,
    measured_draft_s,
    measured_layer_s,
    read_off,
    stage_measurements,
)
from flowedge.planning.profile.device import DeviceProfile, StrategyTimes
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.model import BlockSize, LayerSize, NGramSize, RecallSize
from flowedge.planning.profile.pipeline import MiddleProfile, PipelineProfile
from flowedge.planning.roofline import attention_s, batch_layer_s, head_s, layer_s, product_s
from flowedge.planning.split import layer_ranges
from flowedge.planning.virtual_pipeline import DRAFT_NODE, number_of


class MiddleCosts:
    """The costs of one device of a middle model.

    Attributes:
        device: which it is.
        link: the link that leaves it.
        jitter: the generator of that link's jitter.
        row_bytes: of a hidden state that it hands on; 0 for the last device, which sends token ids.
    """

    def __init__(self, middle: MiddleProfile, part: int, stored_bytes: int, seed: int) -> None:
        """part: the index of the device in the middle model's."""
        self.device, self.link = middle.devices[part], middle.links[part]
        self.jitter = random.Random(seed)
        self._is_last = part == len(middle.devices) - 1
        self.row_bytes = 0 if self._is_last else middle.size.hidden * stored_bytes
        self._size, self._layers = middle.size, middle.split[part]
        self._layer = LayerSize.of(middle.size, stored_bytes)
        self._stored = stored_bytes

    def batch(self, forwards: Sequence[Forward]) -> float:
        """Return the time of one forward over the rows of several sessions."""
        size, rows = self._size, sum(job.num_rows for job in forwards)
        layers_s = self._layers * self.batch_layer(forwards)
        if not self._is_last:
            return layers_s
        return layers_s + head_s(self.device, size.vocab * size.hidden, size.vocab, rows, self._stored)

    def batch_layer(self, forwards: Sequence[Forward]) -> float:
        """Return the time of one layer over the rows of several sessions."""
        parts = [(job.num_rows, job.cached + job.num_rows) for job in forwards]
        return batch_layer_s(self.device, self._layer, parts, "none")


HEADER_BYTES = 64  # of a message apart from its rows, about: ids, numbers, framing
INDEX_BYTES = 4  # a row's position and parent, as varints
TOKEN_BYTES = 4
STAGE_TIME_BYTES = 8  # what a stage took and the wait before, as varints
LEARNT_ROWS = 64  # most true rows of a draft job that lookup learns from; only a prompt has more
NOTHING_ADDED = StrategyTimes(verified_ms=0, drafted_ms=0)
LOOKUP_S = 0.0002  # n-gram lookups for one tree layer; a desktop core takes 70 us for ten nodes


class ProfileCosts:
    """The costs of a profiled pipeline, for a virtual one."""

    def __init__(self, pipeline: PipelineProfile, seed: int = 0, strategy: str = DEFAULT_STRATEGY) -> None:
        """Price the work of a strategy; `seed` is added to the seed of each link's jitter."""
        self.pipeline = pipeline
        added = pipeline.draft_node.added
        self._strategy = NOTHING_ADDED if added is None else added.of(strategy)
        self._cores = pipeline.draft_node.shared_cores if pipeline.one_host else None
        self._kinds = [pipeline.model.kinds(*span) for span in layer_ranges(pipeline.split)]
        self._stored = pipeline.model.stored_bytes
        widths = [pipeline.row_width(stage) for stage in range(pipeline.num_stages)]
        self._row_bytes = {stage: width * self._stored for stage, width in enumerate(widths)}
        self._draft_row_bytes = {
            stage: pipeline.draft_row_width(stage) * self._stored for stage in range(pipeline.num_stages)
        }
        self._whole = DrafterWeights.of(pipeline.model, pipeline.drafter)
        self._drafter = DrafterWeights.of(
            pipeline.model, pipeline.drafter, pipeline.draft_tokens, pipeline.draft_quant
        )
        self._measured = stage_measurements(pipeline)
        self._measured_head = head_measurement(pipeline)
        self._measured_draft = draft_measurement(pipeline)
        self._jitter = [random.Random(link.seed + seed + i) for i, link in enumerate(pipeline.links)]
        parts = [(middle, part) for middle in pipeline.middles for part in range(len(middle.devices))]
        self._middles = [  # by the number of the device
            MiddleCosts(middle, part, self._stored, middle.links[part].seed + seed - number)
            for number, (middle, part) in enumerate(parts, start=1)
        ]

    def stage_job(self, stage: int, job: StageJob) -> float:
        """Return the time of all layers of a stage over the job's rows, and of what the last stage draws.

        Allocating a cache takes no time.
        """
        return self.stage_batch(stage, job.forwards) if isinstance(job, ForwardBatch) else 0.0

    def stage_batch(self, stage: int, forwards: Sequence[Forward]) -> float:
        """Return the time of the forwards of several sessions that a stage computes in one.

        Weights are read once for all rows, and a layer's overhead counts once. Each session adds its
        attention over its own cache.
        """
        if stage < DRAFT_NODE:
            return self._middle(stage).batch(forwards)
        measured = self._measured[stage]
        forward = 0.0 if measured is None else measured.forward_ms / 1e3
        drawn = sum(0 if job.draw is None else len(job.draw.visitable) for job in forwards)
        verify = self.verify(drawn) if drawn else 0.0
        return forward + self.layers(stage, forwards) + verify

    def layer(self, stage: int, job: ForwardBatch) -> float:
        """Return the time of one layer of a stage over the job's rows."""
        return self.batch_layer(stage, job.forwards)

    def batch_layer(self, stage: int, forwards: Sequence[Forward]) -> float:
        """Return the time of one layer of a stage over the rows of several sessions together.

        Where the stage's layers differ, it is the mean.
        """
        if stage < DRAFT_NODE:
            return self._middle(stage).batch_layer(forwards)
        return self.layers(stage, forwards) / self.pipeline.split[stage]

    def layers(self, stage: int, forwards: Sequence[Forward]) -> float:
        """Return the time of all layers of a stage over the rows of several sessions together."""
        return sum(
            number * (self._with_state if layer.recurs else self._attending)(stage, layer, forwards)
            for layer, number in self._kinds[stage]
        )

    def _with_state(self, stage: int, layer: LayerSize, forwards: Sequence[Forward]) -> float:
        """Return the time of a layer with a state, whose updates by ancestors are computed again."""
        device, measured, quant = self.pipeline.stages[stage], self._measured[stage], self.pipeline.quant
        parts = [(job.num_rows, updates(job)) for job in forwards]
        if measured is None or layer.is_dense:
            return batch_layer_s(device, layer, parts, quant)

        def roofline(rows: int) -> float:
            return layer_s(device, layer, rows, rows, quant)

        rows = sum(rows for rows, _ in parts)
        further = sum(steps for _, steps in parts) - rows
        return (read_off(measured.table_of(layer), rows, roofline) + further * measured.step_ms) / 1e3

    def _attending(self, stage: int, layer: LayerSize, forwards: Sequence[Forward]) -> float:
        device, measured, quant = self.pipeline.stages[stage], self._measured[stage], self.pipeline.quant
        if (
            measured is None or layer.is_dense
        ):  # where some layers have experts, a layer with them is measured
            parts = [(job.num_rows, job.cached + job.num_rows) for job in forwards]
            return batch_layer_s(device, layer, parts, quant)
        usual = sum(job.cached for job in forwards) // len(forwards)

        def roofline(rows: int) -> float:
            return layer_s(device, layer, rows, usual + rows, quant)

        def attention(seen: int) -> float:
            return attention_s(device, layer, 1, seen)

        def kv_bytes(cached: int) -> float:
            return cached * layer.kv_bytes_per_row / device.bytes_per_s

        before = [(job.num_rows, job.cached) for job in forwards]
        return measured_layer_s(measured, before, roofline, attention, kv_bytes)

    def draft_job(self, job: DraftJob) -> float:
        """Return the time of a job of the draft node.

        A draft layer is a forward of the drafter and its LM head; a verification is the target's LM head. In
        a batch, the rows of all sessions share a forward, and a product of the LM head.
        """
        jobs = job.jobs if isinstance(job, DraftBatch) else ()
        verified = [len(each.positions) for each in jobs if isinstance(each, Verify)]
        if verified:
            return self.verify(sum(verified))
        drafted = [each for each in jobs if isinstance(each, ExtendDraft | GrowDraft)]
        if not drafted:
            return 0.0
        return self._draft_joined(drafted) if self.pipeline.drafting else self._draft_alone(drafted, False)

    def conclude(self, place: int, job: StageJob | DraftJob) -> float:
        """Return the time in which a device carries out what follows from a job, and sends it."""
        match job:
            case DraftBatch():
                each_ms = self._strategy.verified_ms if job.verifies else self._strategy.drafted_ms
                drafted = sum(not isinstance(each, ExtendDraft) for each in job.jobs)
                return drafted * each_ms / 1e3
            case ForwardBatch():
                added = self._device(place).added
                return 0.0 if added is None else added.send_ms / 1e3
            case _:
                return 0.0

    def receive(self, place: int, message: Message) -> float:
        """Return the time that a device takes to read a message and to begin what it asks for.

        Draws of the last stage are carried out as they arrive, those of the draft node after its job.
        """
        segments = [part for part in session_messages(message) if isinstance(part, Segment)]
        drawn = sum(segment.drawn is not None and len(segment.carried) > 0 for segment in segments)
        bookkeeping_ms = self._strategy.verified_ms * drawn
        added = self._device(place).added
        if added is None:
            return bookkeeping_ms / 1e3
        sender, sent = place - 1 if place >= 0 else self.pipeline.num_stages - 1, 0
        if sender in self._row_bytes:
            sent = sum(
                self._payload_bytes(sender, segment) for segment in segments if segment.payload.ndim > 1
            )
        return (added.receive_ms + added.mib_ms * sent / (1 << 20) + bookkeeping_ms) / 1e3

    def speed(self, place: int, busy: Collection[int]) -> float:
        """Return how fast a device computes, as a share of its speed alone, while those at `busy` do.

        Devices that all have the same profile with shared cores are agents of one host. A draft node that is
        a stage as well computes for both at half its speed.
        """
        speed = 1.0 if self._cores is None else self._cores.speed_of(len(busy))
        parts = (DRAFT_NODE, self.pipeline.beside)
        return speed / 2 if place in parts and all(part in busy for part in parts) else speed

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
        return self._middle(sender).row_bytes if sender < DRAFT_NODE else self._row_bytes.get(sender, 0)

    def message_bytes(self, sender: int, message: Message) -> int:
        """Return the bytes of a message on the link out of `sender`."""
        match message:
            case SegmentBatch():
                return HEADER_BYTES + sum(self._segment_bytes(sender, each) for each in message.segments)
            case Segment():
                return HEADER_BYTES + self._segment_bytes(sender, message)
            case Prune():
                return HEADER_BYTES + INDEX_BYTES * len(message.retained)
            case Tapped():
                before = self._row_bytes[sender - 1] if sender else self.pipeline.model.hidden * self._stored
                return HEADER_BYTES + len(message.rows) * (self._row_bytes[sender] - before)
            case _:
                return HEADER_BYTES

    def _segment_bytes(self, sender: int, segment: Segment) -> int:
        """Return the bytes of what a segment says of its rows, and of its payload."""
        tokens = sum(len(rows) for rows in (segment.tokens, segment.drawn) if rows is not None)
        listed = segment.num_rows * INDEX_BYTES + tokens * TOKEN_BYTES
        return listed + len(segment.stage_times) * STAGE_TIME_BYTES + self._payload_bytes(sender, segment)

    def _payload_bytes(self, sender: int, segment: Segment) -> int:
        """Return the bytes of token ids [n] or of hidden states [n, width], which may have no width."""
        payload = segment.payload
        if payload.ndim == 1:
            return len(payload) * TOKEN_BYTES
        if sender < DRAFT_NODE:
            return len(payload) * self._middle(sender).row_bytes
        of_row = self._row_bytes if segment.committed else self._draft_row_bytes
        return len(payload) * of_row[sender] if payload.shape[1] else 0

    def _middle(self, place: int) -> MiddleCosts:
        return self._middles[number_of(place) - 1]

    def _device(self, place: int) -> DeviceProfile:
        if place == DRAFT_NODE:
            return self.pipeline.draft_node
        return self._middle(place).device if place < DRAFT_NODE else self.pipeline.stages[place]

    def _link(self, sender: int) -> LinkProfile:
        return self._middle(sender).link if sender < DRAFT_NODE else self.pipeline.links[sender]

    def _draft_joined(self, jobs: Sequence[ExtendDraft | GrowDraft]) -> float:
        """Return the time of joined drafters, which run one after the other."""
        total, learns = 0.0, any(isinstance(size, NGramSize) for size in self.pipeline.drafting)
        of_models = [job for job in jobs if isinstance(job, ExtendDraft) or not job.lookup_alone]
        for size in self.pipeline.drafting:
            match size:
                case NGramSize():
                    total += LOOKUP_S * sum(isinstance(job, GrowDraft) for job in jobs)
                case RecallSize():
                    total += self._recall() * len(of_models)
                case _ if of_models:
                    alone = replace(self.pipeline, drafter=size, drafting=())
                    total += ProfileCosts(alone)._draft_alone(of_models, learns)
        return total

    def _draft_alone(self, jobs: Sequence[ExtendDraft | GrowDraft], learns: bool) -> float:
        """Return the time of one drafter. If `learns`, true rows pass through its LM head as well."""
        if isinstance(self.pipeline.drafter, BlockSize):
            return self._draft_blocks(self.pipeline.drafter, jobs)
        rows = [_draft_rows(job, learns) for job in jobs]
        extended, grown, nodes = (sum(column) for column in zip(*rows, strict=True))
        return self._draft(extended, grown, nodes, len(jobs))

    def _draft_blocks(self, size: BlockSize, jobs: Sequence[ExtendDraft | GrowDraft]) -> float:
        """Return the time of a block head: its forward is that of the roots' blocks, and ranks all depths."""
        device, drafter, quant = self.pipeline.draft_node, self._drafter, self._drafter.quant
        extended = sum(0 if job.next_tokens is None else len(job.next_tokens) for job in jobs)
        grown = [job for job in jobs if isinstance(job, GrowDraft)]
        roots = sum(int(job.nodes[0]) == 0 for job in grown)
        total = LOOKUP_S * (len(grown) - roots)
        if extended:
            text = drafter.fc + size.layers * 2 * drafter.layer.hidden * drafter.layer.kv_width
            total += product_s(device, text, extended, quant, stored_bytes=self._stored)
        if roots:
            rows = roots * size.size
            total += size.layers * layer_s(device, drafter.layer, rows, 0, quant)
            total += self._proposals(drafter, roots * size.depths)
        if drafter.bias:
            nodes = sum(len(job.nodes) for job in grown)
            total += (
                product_s(device, drafter.bias, nodes, quant, stored_bytes=self._stored) if nodes else 0.0
            )
        return total

    def _recall(self) -> float:
        """Return the time of reading the directions and errors of a full window, for any number of rows."""
        model = self.pipeline.model
        return 2 * WINDOW * model.hidden * self._stored / self.pipeline.draft_node.bytes_per_s

    def _draft(self, extended: int, grown: int, nodes: int, roots: int = 1) -> float:
        """Return the time of a draft layer of one session, or of several in a batch.

        Args:
            extended: true rows of its forward; grown: draft rows of it.
            nodes: nodes whose children are chosen; roots: those of them that are roots, at most.
        """
        computed = self._draft_roofline(self._drafter, extended, grown, nodes)
        if self._measured_draft is None:
            return computed
        like = extended, grown, nodes
        if grown and (extended or nodes > grown):
            like = 0, extended + grown, extended + grown
        elif roots > 1 and not grown:
            like = extended, 0, nodes - roots + 1
        if like != (extended, grown, nodes):  # a batch, by what was measured of a session and a ratio
            return self._draft(*like) * computed / self._draft_roofline(self._drafter, *like)
        forward_of_true = partial(self._draft_forward, self._whole, grown=0)
        measured = measured_draft_s(self._measured_draft, extended, grown, nodes, forward_of_true)
        # The measured drafter is whole. Another form of it takes the share that the roofline gives.
        return measured * computed / self._draft_roofline(self._whole, extended, grown, nodes)

    def verify(self, rows: int) -> float:
        """Return the time of the target's LM head over `rows` rows, where the pipeline verifies."""

        def roofline(rows: int) -> float:
            model = self.pipeline.model
            weights = model.vocab * model.hidden
            return head_s(self.pipeline.verifier, weights, model.vocab, rows, self._stored)

        if self._measured_head is None:
            return roofline(rows)
        return read_off(self._measured_head.verify_ms, rows, roofline) / 1e3

    def _draft_roofline(self, drafter: DrafterWeights, extended: int, grown: int, nodes: int) -> float:
        """Return the roofline's time of a draft layer by a form of the drafter; arguments as in `_draft`."""
        forward = self._draft_forward(drafter, extended, grown) if extended + grown or not nodes else 0.0
        return forward + (self._proposals(drafter, nodes) if nodes else 0.0)

    def _draft_forward(self, drafter: DrafterWeights, extended: int, grown: int) -> float:
        """Return the time of the drafter's fc and layers over true rows (`extended`) and draft rows."""
        device, quant = self.pipeline.draft_node, drafter.quant
        through_fc = extended + (grown if drafter.fc_for_draft_rows else 0)
        fc = 0.0
        if through_fc:
            fc = product_s(device, drafter.fc, through_fc, quant, stored_bytes=self._stored)
        return fc + drafter.layers * layer_s(device, drafter.layer, extended + grown, 0, quant)

    def _proposals(self, drafter: DrafterWeights, nodes: int) -> float:
        """Return the time of the LM head that the drafter proposes with, and of the tokens seen beside it."""
        device, width = self.pipeline.draft_node, drafter.lm_head // drafter.vocab
        head = head_s(device, drafter.lm_head, drafter.vocab, nodes, self._stored, drafter.quant)
        if not drafter.adds_seen:
            return head
        return head + product_s(device, MOST_SEEN * width, nodes, stored_bytes=self._stored)


def updates(job: Forward) -> int:
    """Return how many updates of its session's state the rows of a forward take, their ancestors' again."""
    return steps_of_drafts(job.tail_parents - job.context, job.num_rows, 1).count


def _draft_rows(job: ExtendDraft | GrowDraft, learns: bool) -> tuple[int, int, int]:
    """The true rows, the draft rows and the rows of the LM head of a job; `learns` as for drafters."""
    if isinstance(job, ExtendDraft):
        return len(job.next_tokens), 0, 0
    extended = 0 if job.next_tokens is None else len(job.next_tokens)
    # The root's children are read off the forward that extends the drafter's cache.
    grown = 0 if int(job.nodes[0]) == 0 else len(job.nodes)
    learnt = extended if learns and extended <= LEARNT_ROWS else 0
    return extended, grown, len(job.nodes) + learnt
