"""The table of live runs beside their simulation."""

from __future__ import annotations

from flowedge.cli.options import BUNDLED
from flowedge.drafting.choice import NGRAM
from flowedge.planning.profile.model import NGramSize
from flowedge_testbed.profiles import library
from testbed.tools.live_truth.__main__ import METHODS, Measured, emulate, report


def test_a_method_has_the_medians_of_its_rounds() -> None:
    found = [
        Measured(1, "auto", live, simulated, same_tokens=True)
        for live, simulated in ((90, 100), (240, 200), (100, 100))
    ]
    found.append(Measured(2, "auto", 50, 100, same_tokens=False))
    found += (Measured(0, "llama.cpp", live) for live in (80, 70, 90))
    lines = report(found).splitlines()[2:]
    assert lines == [
        "| 1 | auto | 100 | 100 | 1.00 | 0.90 to 1.20 |",
        "| 2 | auto (other tokens) | 50 | 100 | 0.50 | 0.50 to 0.50 |",
        "|  | llama.cpp | 80 |  |  |  |",
    ]


def test_every_method_without_models_between_is_compared() -> None:
    assert {"autoregressive", "auto", "specpipe", "flowspec_paper"} <= set(METHODS)
    assert "pipespec" not in METHODS


def test_all_places_have_the_profile_of_the_machine() -> None:
    device, model = library.device("x86-2core"), library.model("bundled")
    made = emulate(device, model, [BUNDLED], 3)
    assert made.stages == (device,) * 3
    assert made.draft_node == device
    assert made.split == (3, 3, 2)
    assert len(made.links) == 4
    assert not made.drafting
    lookup = NGramSize(kind="ngram")
    assert emulate(device, model, [NGRAM], 3).drafting == (lookup,)
    assert emulate(device, model, [BUNDLED, NGRAM], 3).drafting == (model.drafters["eagle"], lookup)
