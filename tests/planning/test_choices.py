"""What verification costs on the last stage, and the place that an emulated pipeline takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flowedge.core.messages import Tapped
from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE
from flowedge.planning.choices import cheaper_verification, forward_of, with_retained_taps, with_verification
from flowedge.planning.memory_fit import draft_node_parts, stage_parts
from flowedge.planning.profile.model import EagleSize, SmallModelSize
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import HEADER_BYTES, ProfileCosts
from tests.planning.test_profile_costs import DEVICE, LINK, MODEL, eight_layers, emulation, segment, verify
from tests.support.session_jobs import batch_of

FAST = DEVICE.model_copy(update={"memory_bandwidth_gb_s": 2e-5, "layer_overhead_ms": 0.3})
SLOW = DEVICE.model_copy(update={"memory_bandwidth_gb_s": 2e-7})
SMALL = SmallModelSize(kind="small_lm", layers=2, hidden=2, intermediate=4, heads=1, kv_heads=1, vocab=50)
TALL = MODEL.model_copy(update={"layers": 12, "vocab": 200})  # whose LM head takes some layers' time


def test_the_last_stage_reads_the_head_for_the_rows_that_the_path_can_take() -> None:
    here = ProfileCosts(emulation(stages=(DEVICE, FAST)))
    there = ProfileCosts(emulation(stages=(DEVICE, FAST), verification=LAST_STAGE))
    plain = there.stage_job(1, forward_of(5))
    assert plain == here.stage_job(1, forward_of(5)), "no row of the segment is on the path"
    for rows in (1, 3):
        assert there.stage_job(1, forward_of(5, drawn=rows)) == pytest.approx(plain + there.verify(rows))
    assert there.verify(3) < here.verify(3), "by the device that has the head"
    assert here.draft_job(batch_of(verify(3))) == here.verify(3)


def test_links_carry_tokens_on_the_way_and_rows_of_the_path_back() -> None:
    costs = ProfileCosts(emulation(verification=LAST_STAGE))
    sent = replace(segment(5, hidden=True), tokens=np.arange(5))
    assert costs.message_bytes(0, sent) == HEADER_BYTES + 5 * (4 * 2 + 4 + 4)
    states = segment(5, hidden=True)
    back = replace(states, drawn=np.array([7, -1, 8, -1, -1]), payload=states.payload[:2])
    assert costs.message_bytes(1, back) == HEADER_BYTES + 5 * (4 + 4) + 2 * 4 * 2
    ids = replace(back, payload=back.payload[:, :0])
    assert costs.message_bytes(1, ids) == HEADER_BYTES + 5 * (4 + 4)


def test_memory_counts_the_head_where_it_lies() -> None:
    here, there = emulation(), emulation(verification=LAST_STAGE)
    assert stage_parts(there, 1, 10)["LM head"] == 50 * 4 * 2
    assert "LM head" not in stage_parts(here, 1, 10) | stage_parts(there, 0, 10)
    assert "LM head" in draft_node_parts(there, 10), "the drafter reads it"


def test_the_cheaper_place_is_taken() -> None:
    assert cheaper_verification(emulation(draft_node=SLOW)) == LAST_STAGE
    assert cheaper_verification(emulation(stages=(DEVICE, SLOW))) == DRAFT_NODE
    assert cheaper_verification(emulation()) == LAST_STAGE, "drafting waits for a draft node that verifies"
    taken = with_verification(emulation(draft_node=SLOW), "auto", even=False)
    assert (taken.verification, taken.split) == (LAST_STAGE, (3, 1))
    assert with_verification(emulation(draft_node=SLOW), DRAFT_NODE, even=True) == emulation(draft_node=SLOW)


def test_a_head_that_does_not_fit_stays_on_the_draft_node() -> None:
    tight = DEVICE.model_copy(update={"memory_gib": 9e-5})
    wide = MODEL.model_copy(update={"vocab": 10_000})
    made = emulation(model=wide, draft_node=SLOW, stages=(DEVICE, tight))
    assert cheaper_verification(made) == LAST_STAGE
    assert with_verification(made, "auto", even=False).verification == DRAFT_NODE
    assert with_verification(made, LAST_STAGE, even=False).verification == LAST_STAGE


def test_layers_make_room_for_the_head() -> None:
    made = emulation(model=TALL, split=(6, 6), draft_node=SLOW)
    beside = with_verification(made, "auto", even=True)
    assert beside.split[0] > 6 and sum(beside.split) == 12
    costs = ProfileCosts(beside)
    first, last = costs.stage_job(0, forward_of(16)), costs.stage_job(1, forward_of(16, drawn=16))
    assert abs(first - last) <= costs.layer(0, forward_of(16)), "within a layer"


@pytest.mark.parametrize("place", [DRAFT_NODE, LAST_STAGE])
def test_drafters_without_features_need_no_hidden_states(place: str) -> None:
    assert emulation(verification=place).needs_features
    assert not emulation(verification=place, drafter=SMALL).needs_features


VALUES = 4 * 2  # bytes of a hidden state: four values of two bytes
SPLIT = (3, 2, 3)  # the layers 2, 4 and 5 are tapped, one on each


def linked(latency_ms: float, jitter_ms: float = 0.0, **changes: object) -> PipelineProfile:
    link = LINK.model_copy(update={"latency_ms": latency_ms, "jitter_ms": jitter_ms})
    return eight_layers(SPLIT, links=(link,) * 4, **changes)


def test_what_is_kept_crosses_the_links_once_for_accepted_rows() -> None:
    emulation = eight_layers(SPLIT, keeps_taps=True)
    costs = ProfileCosts(emulation)
    committed = replace(segment(5, hidden=True), committed=True)
    for stage in range(3):
        assert costs.message_bytes(stage, segment(5, hidden=True)) == HEADER_BYTES + 5 * (VALUES + 4)
        assert costs.message_bytes(stage, committed) == HEADER_BYTES + 5 * ((2 + stage) * VALUES + 4)
        assert costs.message_bytes(stage, Tapped("s", 0, np.zeros((3, 1)))) == HEADER_BYTES + 3 * VALUES
    drawing = ProfileCosts(replace(emulation, verification=LAST_STAGE))
    sent = [drawing.message_bytes(stage, segment(5, hidden=True)) for stage in range(3)]
    assert sent == [HEADER_BYTES + 5 * (width * VALUES + 4) for width in (1, 1, 2)]


@pytest.mark.parametrize(
    ("changes", "carried"), [({}, 1 + 2 + 3), ({"verification": LAST_STAGE}, 1 + 2)], ids=["here", "last"]
)
def test_a_round_trip_is_held_against_what_a_segment_would_take(
    changes: dict[str, object], carried: int
) -> None:
    saved_ms = 16 * carried * VALUES  # at a byte a millisecond
    assert with_retained_taps(linked(saved_ms / 2 - 1, **changes), None).keeps_taps
    assert not with_retained_taps(linked(saved_ms / 2 + 1, **changes), None).keeps_taps
    assert not with_retained_taps(linked(saved_ms / 2 - 1, jitter_ms=3, **changes), None).keeps_taps


def test_a_scenario_may_say_it() -> None:
    assert with_retained_taps(linked(1e6), True).keeps_taps
    assert not with_retained_taps(linked(0), False).keeps_taps
    assert not with_retained_taps(linked(0, drafter=EagleSize(kind="eagle")), True).keeps_taps, (
        "nothing is tapped"
    )
