"""Stages of an emulated pipeline keep what they tap where that saves more than a round trip to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flowedge.core.messages import Tapped
from flowedge.core.verification import LAST_STAGE
from flowedge.profiling.documents.model import EagleSize
from flowedge_testbed.costs.profile_costs import HEADER_BYTES, ProfileCosts
from flowedge_testbed.costs.tap_choice import with_kept_taps
from flowedge_testbed.emulation.emulation import Emulation
from tests.testbed.costs.test_costs import LINK, eight_layers, segment

VALUES = 4 * 2  # bytes of a hidden state: four values of two bytes
SPLIT = (3, 2, 3)  # the layers 2, 4 and 5 are tapped, one on each


def linked(latency_ms: float, jitter_ms: float = 0.0, **changes: object) -> Emulation:
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
    assert with_kept_taps(linked(saved_ms / 2 - 1, **changes), None).keeps_taps
    assert not with_kept_taps(linked(saved_ms / 2 + 1, **changes), None).keeps_taps
    assert not with_kept_taps(linked(saved_ms / 2 - 1, jitter_ms=3, **changes), None).keeps_taps


def test_a_scenario_may_say_it() -> None:
    assert with_kept_taps(linked(1e6), True).keeps_taps
    assert not with_kept_taps(linked(0), False).keeps_taps
    assert not with_kept_taps(linked(0, drafter=EagleSize(kind="eagle")), True).keeps_taps, (
        "nothing is tapped"
    )
