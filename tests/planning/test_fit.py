"""The number of devices that a model fits on, against cases counted by hand."""

from __future__ import annotations

from flowedge.planning.fit import Demand, least_devices, most_layers, placement_of

EIGHT = Demand([10] * 8, first=5, last=1, head=5)


def test_a_stage_holds_its_layers_and_what_is_at_its_end() -> None:
    assert EIGHT.stage_bytes(0, 8) == 86
    assert EIGHT.stage_bytes(0, 2) == 25
    assert EIGHT.stage_bytes(2, 5) == 30
    assert EIGHT.stage_bytes(6, 8) == 21


def test_placing_over_a_draft_node_and_stages() -> None:
    placement = placement_of(EIGHT, 4, 30)
    assert placement is not None
    assert placement.split == (3, 3, 2) and placement.stage_bytes == (35, 30, 21) and not placement.fits
    fitting = placement_of(EIGHT, 4, 35)
    assert fitting is not None and fitting.fits
    assert placement_of(EIGHT, 1, 1000) is None
    assert placement_of(EIGHT, 10, 1000) is None


def test_the_least_number_of_devices() -> None:
    assert least_devices(EIGHT, 86) == 2
    assert least_devices(EIGHT, 85) == 3
    assert least_devices(EIGHT, 30) == 5
    assert least_devices(EIGHT, 15) == 9
    assert least_devices(EIGHT, 14) is None
    assert least_devices(Demand([1, 1], first=0, last=0, head=50), 40) is None


def test_layers_of_different_sizes_are_counted_by_the_largest() -> None:
    assert most_layers(EIGHT, 35) == 3
    assert most_layers(EIGHT, 9) == 0
    assert most_layers(Demand([1, 1, 20], 0, 0, 0), 21) == 2
