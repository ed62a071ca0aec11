"""The summary of a report: the fastest method and its lead, reasons for distrust, the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowedge.core.request import Noise
from flowedge_testbed.bench.options import BenchOptions
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import cases
from flowedge_testbed.report.entries import Entry
from flowedge_testbed.report.origin import devices_phrase, origin_of, tokens_phrase
from flowedge_testbed.report.summary import doubts, fastest, summarise
from flowedge_testbed.scenario import SHIPPED, Scenario, read_scenario
from tests.testbed.conftest import SMALL


def entry(method: str, speed: float | None, noise: Noise = "plain", mbps: float = 150) -> Entry:
    return {
        "profile": "llama2-7b-fp16",
        "model": "LLaMA2-Chat 7B",
        "method": method,
        "options": {},
        "noise": noise,
        "temperature": 0,
        "dataset": "own",
        "tokens_per_s": speed,
        "point": {"mbps": mbps},
        "looping_requests": 1 if method == "auto" else 0,
        "requests": 2,
        "by_prompt": {"tokens": [20.0], "seconds": [20 / (speed or 1)]},
    }


def results(*entries: Entry, **changes: Any) -> dict[str, Any]:
    datasets = {"own": {"prompts": 2, "left_out_as_too_long": 0}}
    return {"runs": list(entries), "datasets": datasets, "outputs_differ": [], "quick": False, **changes}


def scenario(**changes: Any) -> Scenario:
    return Scenario.checked({**SMALL, **changes}, "a test")


def test_the_fastest_is_named_with_its_lead() -> None:
    entries = [entry("autoregressive", 2.0), entry("naive_pp", 4.0), entry("pipedec", 5.0)]
    entries += [entry("auto", 8.0, "shared"), entry("specpipe", 5.0)]
    assert fastest(entries) == (
        "auto, shared noise with 8 tokens/s (1.60 x the next, pipedec = specpipe, 2.00 x naive_pp, "
        "4.00 x autoregressive)"
    )
    assert fastest(entries[:2]) == "naive_pp with 4 tokens/s (2.00 x the next, autoregressive)"
    assert fastest(entries[:1]) == "autoregressive with 2 tokens/s"
    assert fastest([entry("auto", None)]).startswith("no speed was measured")


def test_a_lead_has_its_interval_and_the_prompts_that_it_takes() -> None:
    auto, next_best = entry("auto", 8.0), entry("pipedec", 7.9)
    auto["by_prompt"] = {"tokens": [20.0, 20.0], "seconds": [2.0, 3.0]}
    next_best["by_prompt"] = {"tokens": [20.0, 20.0], "seconds": [3.0, 2.06]}
    assert "(1.01 ±0.41 x the next, pipedec)" in fastest([auto, next_best])
    chance = next(line for line in doubts(scenario(), results(auto, next_best)) if "by chance" in line)
    assert chance.startswith("with 2 prompts of a dataset the two fastest may differ by 40.")
    assert chance.endswith("% by chance; 3 % takes 359")


def test_the_points_of_a_sweep_are_counted() -> None:
    swept = [("auto", 6.0, 100), ("auto", 7.0, 200), ("flowspec", 6.5, 100), ("flowspec", 5.0, 200)]
    told = fastest([entry(method, speed, mbps=mbps) for method, speed, mbps in swept])
    assert told == (
        "auto with 6.5 tokens/s on average over 2 points (1.13 x the next, flowspec, fastest at 1 of 2 "
        "points of the sweep)"
    )


def test_reasons_for_distrust() -> None:
    found = doubts(scenario(), results(entry("auto", 1.0), entry("flowspec", 1.0), outputs_differ=["auto"]))
    assert found[0] == "OUTPUTS DIFFER from the first method's: auto"
    assert found[1].startswith("no device was measured")
    assert "only 2 prompts of a dataset: a lead of some percent may be chance" in found
    assert found[-1] == "1 of 4 answers loop, which drafters foresee"
    many = {"bundled": {"prompts": 20, "left_out_as_too_long": 0}}
    found = doubts(scenario(clock="real"), results(entry("flowspec", 1.0), datasets=many))
    assert found == [
        "other work on the devices is in the figures, and a second run takes another time",
        "the scenario's datasets were not found, so these are the project's own prompts",
    ]


@pytest.mark.slow
def test_a_summary_has_five_lines(pair: ModelSet) -> None:
    asked = scenario(
        emulated=[{"model": "llama2-7b"}, {"model": "vicuna-7b"}, {"model": "llama2-13b", "quant": "fp4"}]
    )
    found = results(entry("auto", 3.0), quick=True)
    origin = origin_of(asked, cases(asked, Path()), found["datasets"], pair)
    run, on, best, distrust, command = summarise(asked, found, origin, "flowedge bench small").plain
    assert run == (
        "Run: A small scenario: 1 method, 2 prompts of own, temperature 0, at most 12 new tokens; "
        "time: virtual clock, replayed, --quick"
    )
    assert on == (
        "On: emulated: LLaMA2-Chat 7B fp16 = Vicuna-v1.3 7B fp16, LLaMA2-Chat 13B fp4 on 5 x Jetson Orin "
        "Nano 8 GB (draft node and 4 stages); links of 150 Mbit/s and 1 ms; tokens by the bundled 8.92 M "
        "model and its EAGLE head; speeds are those of the emulated models and devices"
    )
    assert best == "Fastest: llama2-7b-fp16: auto with 3 tokens/s at temperature 0"
    assert distrust.startswith("Distrust: no device was measured")
    assert command == "Command: flowedge bench small"
    assert tokens_phrase(pair, cases(asked, Path())[0].setup) in on


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "hetero",
            [
                "1 x Jetson AGX Orin 64 GB + 1 x",
                "2 x Jetson Orin Nano 8 GB, draft node",
                "links of 300 to 940",
            ],
        ),
        ("stages", ["2 to 16 stages of", "draft node"]),
        ("bandwidth", ["links of 125 to 1000 Mbit/s"]),
        ("pipespec-3", ["middle models on 1 x"]),
    ],
)
def test_devices_are_told_as_they_are(name: str, said: list[str]) -> None:
    asked = read_scenario(SHIPPED / f"{name}.yaml")
    found = devices_phrase([case.setup for case in cases(asked, SHIPPED)])
    for part in said:
        assert part in found


def test_the_command_can_be_given_again() -> None:
    options = BenchOptions(
        scenario=SHIPPED / "stages.yaml",
        out=Path("runs/a b"),
        quick=True,
        strategies=("auto", "flowspec"),
        temperatures=(0.0, 0.5),
        noise=("plain", "shared"),
        samples=3,
        drafter=("bundled", "ngram"),
        data=Path("prompts"),
    )
    assert options.command == (
        "flowedge bench stages --out 'runs/a b' --quick --strategies auto,flowspec --temperatures 0,0.5 "
        "--noise both --samples 3 --data prompts --drafter bundled --drafter ngram"
    )
    boards = BenchOptions(Path("own.yaml"), Path("o"), noise=("shared",), cluster_dir=Path("c"))
    assert boards.command == "flowedge bench own.yaml --out o --noise shared --cluster-dir c"
    assert BenchOptions(Path("o.yaml"), Path("o"), insecure=True).command == (
        "flowedge bench o.yaml --out o --insecure"
    )
