"""Costs against cases computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.messages import Credit, Prune, Segment
from flowedge.core.sampling import SamplingParams
from flowedge.engine.jobs import DraftBatch, DropCache, ExtendDraft, Forward, GrowDraft, Verify
from flowedge.planning.memory_fit import draft_node_parts, require_fit, stage_parts
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.model import Eagle3Size, EagleSize, ModelProfile, NGramSize, SmallModelSize
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import HEADER_BYTES, LOOKUP_S, ProfileCosts
from flowedge.planning.virtual_pipeline import DRAFT_NODE
from tests.support.session_jobs import batch_of

# A layer has 2*4*4 + 2*4*2 + 3*4*10 = 168 weights, and 2 * 2 * 2 = 8 bytes of KV a row.
MODEL = ModelProfile(
    title="tiny", source="", layers=4, hidden=4, intermediate=10, heads=2, kv_heads=1, vocab=50,
    drafters={"eagle": EagleSize(kind="eagle")},
)  # fmt: skip
WEIGHTS, KV = 168, 8
DEVICE = DeviceProfile(
    title="slow", source="", memory_gib=1, memory_bandwidth_gb_s=2e-6, memory_efficiency=0.5, tflops=1e-8,
    layer_overhead_ms=3, dequantise_gweights_s=1e-6,
)  # fmt: skip
BYTES_PER_S, FLOPS, OVERHEAD, UNPACKED_PER_S = 1000.0, 10_000.0, 0.003, 1000.0
LINK = LinkProfile(title="wire", source="", mbps=0.008, latency_ms=2)  # 1000 bytes a second


def emulation(**changes: object) -> PipelineProfile:
    made = PipelineProfile(
        model=MODEL, quant="none", drafter=EagleSize(kind="eagle"), draft_node=DEVICE, stages=(DEVICE,) * 2,
        links=(LINK,) * 3, split=(3, 1),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def forward(rows: int, cached: int) -> Forward:
    none = np.zeros(0, dtype=np.int64)
    return Forward(
        "s", 0, none, cached, cached, none, np.zeros(rows, dtype=np.int64), np.zeros((rows, 1))
    )  # fmt: skip


def test_a_mixture_reads_the_experts_that_its_rows_touch() -> None:
    """Two of eight experts of width 10 a row: 120 weights each, and 8 * 4 of the router."""
    experts = {"experts": {"count": 8, "chosen": 2}}
    model = ModelProfile.model_validate(MODEL.model_dump() | experts)
    costs = ProfileCosts(emulation(model=model))
    beside, expert = 2 * 4 * 4 + 2 * 4 * 2 + 8 * 4, 3 * 4 * 10
    touched = {1: 2.0, 2: 8 * (1 - 0.75**2), 50: 8.0}
    for rows, count in touched.items():
        reading = ((beside + count * expert) * 2 + rows * KV) / BYTES_PER_S
        computing = 2 * rows * (beside + 2 * expert) / FLOPS
        attention = 4 * rows * rows * 4 / FLOPS
        expected = max(reading, computing) + attention + OVERHEAD
        assert costs.batch_layer(0, [forward(rows, 0)]) == pytest.approx(expected, rel=1e-3)
    held = stage_parts(emulation(model=model), 0, 10)["3 layers in fp16"]
    assert held == 3 * 2 * (beside + 8 * expert)
    drafter = draft_node_parts(emulation(model=model), 10)["drafter"]
    assert drafter == draft_node_parts(emulation(model=replaced(MODEL, intermediate=20)), 10)["drafter"]


def replaced(model: ModelProfile, **sizes: int) -> ModelProfile:
    return model.model_copy(update=sizes)


def test_a_batch_reads_the_weights_once_and_each_cache() -> None:
    costs = ProfileCosts(emulation())
    batch = [forward(1, 10), forward(2, 20), forward(1, 30)]
    seen = (11, 22, 31)
    arithmetic = 4 * 4 * (1 * 11 + 2 * 22 + 1 * 31) / FLOPS
    layer = (WEIGHTS * 2 + sum(seen) * KV) / BYTES_PER_S + arithmetic + OVERHEAD
    assert costs.batch_layer(0, batch) == pytest.approx(layer)
    assert costs.stage_batch(0, batch) == pytest.approx(3 * layer)
    assert costs.stage_batch(0, batch) < sum(costs.stage_job(0, batch_of(job)) for job in batch)
    for job in batch:
        assert costs.stage_batch(0, [job]) == costs.stage_job(0, batch_of(job))


def test_a_batch_of_many_rows_is_bound_by_their_arithmetic() -> None:
    costs = ProfileCosts(emulation())
    rows = 100_000
    both = costs.batch_layer(0, [forward(rows, 0), forward(rows, 0)])
    assert both == pytest.approx(2 * costs.layer(0, batch_of(forward(rows, 0))) - OVERHEAD)


def test_few_rows_are_bound_by_memory() -> None:
    layer = (WEIGHTS * 2 + 11 * KV) / BYTES_PER_S + 4 * 1 * 11 * 4 / FLOPS + OVERHEAD
    costs = ProfileCosts(emulation())
    assert costs.layer(0, batch_of(forward(1, 10))) == pytest.approx(layer)
    assert costs.stage_job(0, batch_of(forward(1, 10))) == pytest.approx(3 * layer)
    assert costs.stage_job(1, batch_of(forward(1, 10))) == pytest.approx(layer)


def test_many_rows_are_bound_by_arithmetic() -> None:
    rows = 100
    layer = 2 * rows * WEIGHTS / FLOPS + 4 * rows * rows * 4 / FLOPS + OVERHEAD
    assert 2 * rows * WEIGHTS / FLOPS > (WEIGHTS * 2 + rows * KV) / BYTES_PER_S
    assert ProfileCosts(emulation()).layer(0, batch_of(forward(rows, 0))) == pytest.approx(layer)


def test_four_bit_weights_are_written_out_for_more_than_one_row() -> None:
    costs = ProfileCosts(emulation(quant="fp4"))
    packed = WEIGHTS * 0.5625
    one = (packed + KV) / BYTES_PER_S + WEIGHTS / UNPACKED_PER_S + 4 * 4 / FLOPS + OVERHEAD
    assert costs.layer(0, batch_of(forward(1, 0))) == pytest.approx(one)
    moved = packed + 2 * KV + 4 * WEIGHTS
    two = moved / BYTES_PER_S + WEIGHTS / UNPACKED_PER_S + 4 * 2 * 2 * 4 / FLOPS + OVERHEAD
    assert costs.layer(0, batch_of(forward(2, 0))) == pytest.approx(two)


def test_int4_weights_are_read_packed_for_any_number_of_rows() -> None:
    costs = ProfileCosts(emulation(quant="int4"))
    for rows in (1, 2):
        read = (WEIGHTS * 0.5625 + rows * KV) / BYTES_PER_S
        assert costs.layer(0, batch_of(forward(rows, 0))) == pytest.approx(
            read + 16 * rows * rows / FLOPS + OVERHEAD
        )
    many = 2 * 100 * WEIGHTS / FLOPS + 16 * 100 * 100 / FLOPS + OVERHEAD
    assert costs.layer(0, batch_of(forward(100, 0))) == pytest.approx(many)


def test_stages_have_devices_of_their_own() -> None:
    fast = DEVICE.model_copy(update={"memory_bandwidth_gb_s": 4e-6, "layer_overhead_ms": 0})
    costs = ProfileCosts(emulation(stages=(DEVICE, fast)))
    assert costs.layer(1, batch_of(forward(1, 0))) == pytest.approx((WEIGHTS * 2 + KV) / 2000 + 16 / FLOPS)
    assert costs.layer(0, batch_of(forward(1, 0))) > costs.layer(1, batch_of(forward(1, 0)))


def grow(nodes: list[int], extended: int | None) -> GrowDraft:
    count = len(nodes)
    return GrowDraft(
        "s", 1, np.array(nodes), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64), 10,
        None if extended is None else np.zeros((extended, 4)),
        None if extended is None else np.zeros(extended, dtype=np.int64),
    )  # fmt: skip


def verify(rows: int, session: str = "s") -> Verify:
    index = np.zeros(rows, dtype=np.int64)
    return Verify(session, SamplingParams(), np.zeros((rows, 1)), index, index, index)


def extend(rows: int, session: str = "s", width: int = 4) -> ExtendDraft:
    return ExtendDraft(session, np.zeros((rows, width)), np.zeros(rows, dtype=np.int64))


def head(rows: int, vocab: int = 50) -> float:
    return (vocab * 4 * 2 + 2 * 4 * vocab * rows) / BYTES_PER_S + OVERHEAD


def eagle() -> float:
    return (32 * 2 + WEIGHTS * 2) / BYTES_PER_S + OVERHEAD  # bound by memory: fc, then the layer


def test_drafting_and_verifying_with_an_eagle_head() -> None:
    costs = ProfileCosts(emulation())
    assert costs.draft_job(batch_of(extend(3))) == pytest.approx(eagle())
    # The root's children come from the forward that extends the cache; deeper layers need one of their own.
    assert costs.draft_job(batch_of(grow([0], 2))) == pytest.approx(eagle() + head(1))
    assert costs.draft_job(batch_of(grow([0], None))) == pytest.approx(head(1))
    assert costs.draft_job(batch_of(grow([4, 5], None))) == pytest.approx(eagle() + head(2))
    assert costs.draft_job(batch_of(verify(3))) == pytest.approx(head(3))
    assert costs.draft_job(DropCache("s")) == 0


def test_a_batch_shares_a_forward_and_a_product() -> None:
    costs = ProfileCosts(emulation())
    jobs = [grow([4, 5], None), grow([0], 2), extend(3, "u")]
    named = [replace(job, session=name) for job, name in zip(jobs, "stu", strict=True)]
    assert costs.draft_job(DraftBatch(named)) == pytest.approx(eagle() + head(3))
    assert costs.draft_job(DraftBatch(named[:1])) == costs.draft_job(batch_of(jobs[0]))
    roots = [replace(grow([0], None), session=name) for name in "st"]
    assert costs.draft_job(DraftBatch(roots)) == pytest.approx(head(2))
    assert costs.draft_job(DraftBatch([verify(3, name) for name in "st"])) == pytest.approx(head(6))
    joined = ProfileCosts(emulation(drafting=(EagleSize(kind="eagle"), NGramSize(kind="ngram"))))
    assert joined.draft_job(DraftBatch(named)) == pytest.approx(eagle() + head(3 + 2) + 2 * LOOKUP_S), (
        "lookup learns from the two rows before the root, and is asked for two layers"
    )


def test_drafting_with_an_eagle3_head() -> None:
    fc = 3 * 4 * 4 * 2 / BYTES_PER_S
    # q, k and v take the token's embedding beside the state, so they are twice as large.
    layer = (2 * 4 * 4 + 2 * 2 * 4 * 2 + 4 * 4 + 3 * 4 * 10) * 2 / BYTES_PER_S + OVERHEAD
    costs = ProfileCosts(eight_layers((4, 4)))
    assert costs.draft_job(batch_of(extend(3, width=16))) == pytest.approx(fc + layer)
    assert costs.draft_job(batch_of(grow([0], 2))) == pytest.approx(fc + layer + head(1, vocab=20))
    assert costs.draft_job(batch_of(grow([4, 5], None))) == pytest.approx(layer + head(2, vocab=20)), (
        "no fc below them"
    )
    assert costs.draft_job(batch_of(verify(3))) == pytest.approx(head(3)), "over the target's vocabulary"


def eight_layers(split: tuple[int, ...], **changes: object) -> PipelineProfile:
    """Of a model whose taps are the layers 2, 4 and 5."""
    stages = len(split)
    base = emulation(
        model=MODEL.model_copy(update={"layers": 8}), split=split, stages=(DEVICE,) * stages,
        links=(LINK,) * (stages + 1), drafter=Eagle3Size(kind="eagle3", draft_vocab=20),
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_small_model_drafts_with_all_its_layers() -> None:
    small = SmallModelSize(kind="small_lm", layers=2, hidden=2, intermediate=4, heads=1, kv_heads=1, vocab=50)
    weights = 4 * 2 * 2 + 3 * 2 * 4
    layers = 2 * (weights * 2 / BYTES_PER_S + OVERHEAD)
    own_head = (50 * 2 * 2 + 2 * 4 * 50) / BYTES_PER_S + OVERHEAD
    assert ProfileCosts(emulation(drafter=small)).draft_job(batch_of(grow([3], None))) == pytest.approx(
        layers + own_head
    )


def segment(rows: int, hidden: bool) -> Segment:
    index = np.zeros(rows, dtype=np.int64)
    payload = np.zeros((rows, 1), dtype=np.float32) if hidden else np.zeros(rows, dtype=np.int32)
    return Segment("s", 0, 0, False, 0, index, index, payload)


def test_links_carry_rows_of_the_emulated_width() -> None:
    costs = ProfileCosts(emulation())
    assert costs.message_bytes(DRAFT_NODE, segment(5, hidden=False)) == HEADER_BYTES + 5 * 8
    for stage in (0, 1):
        assert costs.message_bytes(stage, segment(5, hidden=True)) == HEADER_BYTES + 5 * (4 * 2 + 4)
    assert costs.message_bytes(0, segment(0, hidden=True)) == HEADER_BYTES
    assert costs.message_bytes(DRAFT_NODE, Prune("s", 1, 9, 3, 1, np.arange(3, 6))) == HEADER_BYTES + 12
    assert costs.message_bytes(0, Credit("s")) == HEADER_BYTES
    assert costs.transfer(0, Credit("s")) == pytest.approx(HEADER_BYTES / 1000)
    assert costs.latency(-1) == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("split", "widths"),
    [
        ((8,), [4]),
        ((6, 2), [4, 4]),  # all taps on the first
        ((2, 6), [1, 4]),  # and on the last
        ((2, 3, 3), [1, 3, 4]),
        ((3, 1, 1, 3), [2, 2, 3, 4]),
    ],
    ids=str,
)
def test_rows_widen_where_the_emulated_model_is_tapped(split: tuple[int, ...], widths: list[int]) -> None:
    costs = ProfileCosts(eight_layers(split))
    sent = [costs.message_bytes(stage, segment(5, hidden=True)) for stage in range(len(split))]
    assert sent == [HEADER_BYTES + 5 * (width * 4 * 2 + 4) for width in widths]
    assert costs.transfer(0, segment(5, hidden=True)) == pytest.approx(sent[0] / 1000)
    assert costs.message_bytes(DRAFT_NODE, segment(5, hidden=False)) == HEADER_BYTES + 5 * 8


def test_rows_are_tapped_for_whatever_drafts() -> None:
    eagle3, lookup = Eagle3Size(kind="eagle3", draft_vocab=20), NGramSize(kind="ngram")
    eagle = EagleSize(kind="eagle")
    assert eight_layers((8,), drafter=eagle, drafting=(lookup, eagle3)).taps == (2, 4, 5)
    assert eight_layers((8,), drafter=eagle3, drafting=(lookup,)).taps == ()
    with pytest.raises(BadRequestError, match="7 layers or more; this one has 4"):
        ProfileCosts(emulation(drafter=eagle3))


def test_jitter_is_seeded() -> None:
    link = LINK.model_copy(update={"jitter_ms": 5.0, "seed": 3})
    shaky = emulation(links=(link,) * 3)
    first, second, other = ProfileCosts(shaky), ProfileCosts(shaky), ProfileCosts(shaky, seed=1)
    drawn = [first.latency(0) for _ in range(20)]
    assert drawn == [second.latency(0) for _ in range(20)]
    assert drawn != [other.latency(0) for _ in range(20)]
    assert all(0.002 <= value <= 0.007 for value in drawn)
    assert len(set(drawn)) == 20


def test_a_draft_node_that_computes_layers_shares_its_processor_with_a_stage() -> None:
    for beside, other in ((0, 1), (1, 0)):
        costs = ProfileCosts(emulation(beside=beside))
        assert costs.speed(DRAFT_NODE, {DRAFT_NODE, other}) == costs.speed(beside, {beside}) == 1
        assert costs.speed(DRAFT_NODE, {DRAFT_NODE, beside}) == 0.5
        assert costs.speed(beside, {DRAFT_NODE, 0, 1}) == 0.5
        assert costs.speed(other, {DRAFT_NODE, 0, 1}) == 1
    assert ProfileCosts(emulation()).speed(0, {DRAFT_NODE, 0}) == 1


def test_a_draft_node_that_computes_layers_holds_both_parts_and_is_one_device() -> None:
    drafting = sum(draft_node_parts(emulation(), 100).values())
    tight = DEVICE.model_copy(update={"memory_gib": (drafting + 100) / 2**30})
    with pytest.raises(CapacityError, match=r"the draft node does not fit .*stage 1"):
        require_fit(emulation(beside=0, draft_node=tight, stages=(tight, DEVICE)), 100)
    with pytest.raises(CapacityError, match=r"the draft node does not fit .*stage 2"):
        require_fit(emulation(beside=1, draft_node=tight, stages=(DEVICE, tight)), 100)
    with pytest.raises(BadRequestError, match="one device, but the draft node is a slow"):
        emulation(beside=0, stages=(tight, DEVICE))
