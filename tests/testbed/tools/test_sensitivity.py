"""The assumptions that are changed, and the ratios that are shown for each."""

from __future__ import annotations

from typing import Any

import pytest

from flowedge.core.errors import BadRequestError
from flowedge_testbed.plan import case_of, cases
from flowedge_testbed.profiles import library
from flowedge_testbed.scenario import read_scenario
from testbed.tools.calibrate import DEVICE, EAGLE2_ACCEPTANCE
from testbed.tools.sample_runs import SCENARIO
from testbed.tools.sensitivity import METHODS, Assumptions, assumptions, ratio_table


@pytest.fixture
def every() -> dict[str, Assumptions]:
    emulation = cases(read_scenario(SCENARIO), SCENARIO.parent)[0].emulation
    return {assumed.name: assumed for assumed in assumptions(emulation, library.device(DEVICE))}


def test_one_assumption_is_changed_at_a_time(every: dict[str, Assumptions]) -> None:
    same = every.pop("as assumed")
    assert len(every) == 9
    assert every["acceptance +20 %"].acceptance == pytest.approx(1.2 * EAGLE2_ACCEPTANCE)
    assert every["tflops -20 %"].device.tflops == pytest.approx(0.8 * same.device.tflops)
    assert every["layer_overhead_ms +20 %"].device.layer_overhead_ms == pytest.approx(0.36)
    assert {link.latency_ms for link in every["latency -20 %"].emulation.links} == {0.8}
    assert {link.mbps for link in every["links of 1000 Mbit/s"].emulation.links} == {1000}
    for changed in every.values():
        parts = ("acceptance", "device", "emulation")
        assert sum(getattr(changed, part) != getattr(same, part) for part in parts) == 1


def test_ratios_are_of_mean_tokens_per_second(every: dict[str, Assumptions]) -> None:
    case = case_of(read_scenario(SCENARIO), "as assumed", (), lambda _: every["as assumed"].emulation)
    speeds = {"auto": 12.0, "autoregressive": 3.0, "naive_pp": 6.0, "flowspec_paper": 8.0, "pipedec": 9.0}
    entries: list[dict[str, Any]] = [
        {
            "profile": "as assumed",
            "method": method,
            "temperature": temperature,
            "noise": noise,
            "tokens_per_s": speeds[method] * scale,
        }
        for method in METHODS
        for temperature, noise in ((0, "plain"), (1, "plain"), (1, "shared"))
        for scale in (0.5, 1.5)  # two datasets
    ]
    row = ratio_table([case], entries).splitlines()[-1]
    assert [cell.strip() for cell in row.split("|")[3:-1]] == [
        "6.00", "1.50x", "2.00x", "4.00x", "1.33x", "1.50x", "1.50x", "1.50x", "4.00x",
    ]  # fmt: skip
    with pytest.raises(BadRequestError, match="auto was not run at temperature 0"):
        ratio_table([case], [entry for entry in entries if entry["method"] != "auto"])
