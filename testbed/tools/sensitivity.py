"""Change each assumption that calibration rests on by 20 %, calibrate again, and compare the methods.

Calibration fits memory_efficiency. It takes for granted the acceptance length of the paper's drafter, the
devices' TFLOPS, the overhead of a layer, and the latency and rate of the links. For each changed assumption
the table has the constant that fits then, and the ratios of tokens/s that testbed/docs/costs.md reports.

Run: python -m testbed.tools.sensitivity --data DIR --out DIR [--samples N] [--calibration-samples N]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flowedge.core.errors import BadRequestError
from flowedge.planning.choices import with_verification
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge_testbed.bench.benchmark import Benchmark
from flowedge_testbed.bench.options import BenchOptions, overridden
from flowedge_testbed.bench.progress import bench_progress
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import case_of
from flowedge_testbed.profiles import library
from flowedge_testbed.report.entries import Entry, mean_of
from flowedge_testbed.report.markdown import number, table, times
from flowedge_testbed.runs import Case
from flowedge_testbed.scenario import Scenario, read_scenario
from testbed.tools.calibrate import (
    DATASET,
    DEVICE,
    EAGLE2_ACCEPTANCE,
    fitted,
    on_device,
    target_cycle,
    with_links,
)
from testbed.tools.sample_runs import SCENARIO, SampleRuns

PIPELINE, MODEL = "llama2-7b-fp16", "llama2-7b"
METHODS = ("auto", "autoregressive", "naive_pp", "flowspec_paper", "pipedec")
CHANGE = 0.2
FAST_MBPS = 1000.0

Speed = tuple[str, float, str]  # method, temperature and kind of drafting


@dataclass(frozen=True)
class Assumptions:
    """What calibration takes for granted.

    Attributes:
        acceptance: tokens that the paper's drafter has accepted in a cycle, and the one drawn after them.
        device: the profile of every device, whose memory_efficiency is to be fitted.
        emulation: the pipeline, with the links that are assumed.
    """

    name: str
    acceptance: float
    device: DeviceProfile
    emulation: PipelineProfile


def assumptions(emulation: PipelineProfile, device: DeviceProfile) -> Iterator[Assumptions]:
    """Yield the assumptions as they are, then each of them changed, then faster links."""
    yield Assumptions("as assumed", EAGLE2_ACCEPTANCE, device, emulation)
    latency = emulation.links[0].latency_ms
    for factor in (1 - CHANGE, 1 + CHANGE):
        sign = f"{100 * (factor - 1):+.0f} %"
        yield Assumptions(f"acceptance {sign}", factor * EAGLE2_ACCEPTANCE, device, emulation)
        for constant in ("tflops", "layer_overhead_ms"):
            changed = device.model_copy(update={constant: factor * getattr(device, constant)})
            yield Assumptions(f"{constant} {sign}", EAGLE2_ACCEPTANCE, changed, emulation)
        later = with_links(emulation, latency_ms=factor * latency)
        yield Assumptions(f"latency {sign}", EAGLE2_ACCEPTANCE, device, later)
    faster = with_links(emulation, mbps=FAST_MBPS)
    yield Assumptions(f"links of {FAST_MBPS:g} Mbit/s", EAGLE2_ACCEPTANCE, device, faster)


def calibrated(
    runs: SampleRuns, scenario: Scenario, every: Sequence[Assumptions], say: Callable[[str], None]
) -> list[Case]:
    """Return a case for each set of assumptions, calibrated anew; one that cannot be is left out.

    every: with pipelines that draw on D0, as naive_pp does, and whose layers may be split anew.
    """
    found = []
    for assumed in every:
        _, cycle_s = target_cycle(MODEL, assumed.acceptance)
        try:
            device = fitted(runs, assumed.emulation, assumed.device, "memory_efficiency", cycle_s)
        except BadRequestError as error:
            say(f"{assumed.name}: {error}")
            continue
        say(f"{assumed.name}: memory_efficiency {device.memory_efficiency:.3g}")
        emulation = on_device(assumed.emulation, device)
        drawing = partial(with_verification, emulation, even=True)
        found.append(case_of(scenario, assumed.name, (), drawing))
    return found


RATIOS: dict[str, tuple[Speed, Speed]] = {
    "auto / flowspec_paper, T=0": (("auto", 0, "plain"), ("flowspec_paper", 0, "plain")),
    "auto / naive_pp, T=0": (("auto", 0, "plain"), ("naive_pp", 0, "plain")),
    "auto / autoregressive, T=0": (("auto", 0, "plain"), ("autoregressive", 0, "plain")),
    "flowspec_paper / naive_pp, T=0": (("flowspec_paper", 0, "plain"), ("naive_pp", 0, "plain")),
    "pipedec / naive_pp, T=0": (("pipedec", 0, "plain"), ("naive_pp", 0, "plain")),
    "auto / flowspec_paper, T=1, both plain": (("auto", 1, "plain"), ("flowspec_paper", 1, "plain")),
    "auto / flowspec_paper, T=1, both shared": (("auto", 1, "shared"), ("flowspec_paper", 1, "shared")),
    "auto shared / autoregressive, T=1": (("auto", 1, "shared"), ("autoregressive", 1, "plain")),
}


def ratio_table(cases: Sequence[Case], entries: Sequence[Entry]) -> str:
    """Return the ratios of mean tokens/s for each set of assumptions."""
    rows = []
    for case in cases:
        own = [entry for entry in entries if entry["profile"] == case.profile]
        ratios = [speed_of(own, above) / speed_of(own, below) for above, below in RATIOS.values()]
        base = speed_of(own, ("naive_pp", 0, "plain"))
        efficiency = f"{case.emulation.draft_node.memory_efficiency:.3g}"
        rows.append([case.profile, efficiency, number(base), *map(times, ratios)])
    return table(["Assumption", "memory_efficiency", "naive_pp, T=0, tokens/s", *RATIOS], rows)


def speed_of(entries: Sequence[Entry], which: Speed) -> float:
    """Return the mean over datasets of tokens/s.

    Raises:
        BadRequestError: when it was not run.
    """
    method, temperature, noise = which
    found = [
        e for e in entries if (e["method"], e["temperature"], e["noise"]) == (method, temperature, noise)
    ]
    speed = mean_of(found, "tokens_per_s")
    if speed is None:
        raise BadRequestError(f"{method} was not run at temperature {temperature:g} with {noise} drafting")
    return speed


def scenario_of(options: BenchOptions) -> Scenario:
    """Return table 1's scenario with the compared methods alone, plain and with shared noise."""
    changes: dict[str, Any] = {"temperatures": [0.0, 1.0], "noise": ["plain", "shared"]}
    return overridden(read_scenario(options.scenario), options).model_copy(update=changes)


def main() -> None:
    """Print the table of ratios. Finished runs in the output directory are used again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="directory of the datasets' files")
    parser.add_argument("--out", type=Path, required=True, help="directory of the runs")
    parser.add_argument("--samples", type=int, default=2, help="prompts of each dataset")
    parser.add_argument("--calibration-samples", type=int, default=10, help="prompts of MT-bench to fit to")
    parser.add_argument("--processes", type=int, default=2, help="number of processes that carry out runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options = BenchOptions(
        scenario=SCENARIO,
        out=arguments.out,
        strategies=METHODS,
        samples=arguments.samples,
        data=arguments.data,
        processes=arguments.processes,
    )
    models = ModelSet.load("bundled", ("bundled",))
    runs = SampleRuns(models, DATASET, arguments.data, arguments.calibration_samples, arguments.out)
    every = list(assumptions(runs.emulation(PIPELINE, "naive_pp"), library.device(DEVICE)))
    with bench_progress() as progress:
        scenario = scenario_of(options)
        cases = calibrated(runs, scenario, every, progress.say)
        benchmark = Benchmark.prepare(options, scenario, cases, progress.say, models)
        results = benchmark.run(progress)
    print(ratio_table(cases, results["runs"]))


if __name__ == "__main__":
    main()
