"""The tables of PipeSpec's analysis, from counts that were made up."""

from __future__ import annotations

from typing import Any

from flowedge_testbed.report.pipespec_tables import hierarchies, speedup_table, step_table
from tests.testbed.report.test_tables import cells, entry

M1 = {"steps": 10, "verifying": 8, "drafted": 16, "tokens": 20, "compared": [8, 8], "survived": [8, 4]}
TARGET = {"steps": 4, "verifying": 2, "drafted": 12, "tokens": 8, "compared": [4] * 5, "survived": [3] * 5}


def counted(method: str, speed: float, *verifiers: dict[str, Any], dataset: str = "gsm8k") -> dict[str, Any]:
    """An entry of a hierarchy that is twice as fast as plain decoding."""
    return {
        **entry(method, speed, dataset),
        "speedup_vs_autoregressive": 2.0,
        "rollbacks": [1] * len(verifiers),
        "verifiers": list(verifiers),
        "model_ms": [10.0, 40.0][: len(verifiers)],
    }


def test_steps_of_each_model_stand_beside_the_equations() -> None:
    entries = [
        entry("flowspec", 9.0),
        counted("pipespec", 8.0, M1, TARGET),
        counted("pipespec", 8.0, M1, TARGET, dataset="mt_bench"),
    ]
    header, middle, target = cells(step_table(list(hierarchies(entries, ()))))
    assert header[3:] == [
        *("verifier", "alpha", "the first", "behind four", "gamma", "rho", "eq. 3", "E(N)", "eq. 1"),
        "rollbacks",
    ]
    # Of two datasets alike: 12 of 16 drafts survived, 2 a step that verifies; 0.75 / (1 - 0.75^3 + 0.75).
    assert middle[3:] == ["M1", "0.75", "1.00", "", "2.0", "0.80", "0.56", "2.00", "1.74", "2"]
    assert target[3:9] == ["target", "0.75", "0.75", "0.75", "6.0", "0.50"]


def test_predicted_speedups_stand_beside_the_measured() -> None:
    entries = [counted("pipespec", 8.0, TARGET), counted("sync", 8.0, M1, TARGET)]
    _, asynchronous, synchronous = cells(speedup_table(list(hierarchies(entries, {"sync"}))))
    assert asynchronous[3:] == ["10.0, 250.0", "2.14x", "3.47x", "1.00", "2.00x"]
    # M1: 2 drafts and a forward, 60 ms, for 2.31 tokens; six of these and a step of the target give 3.47.
    assert synchronous[3:] == ["10.0, 40.0, 250.0", "2.14x", "", "1.00", "2.00x"]
