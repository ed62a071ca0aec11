"""Calibrate the Orin Nano's profile on the FlowSpec paper's naive_pp, MT-bench, temperature 0.

LLaMA2-7B in fp16 gives memory_efficiency; LLaMA2-13B in fp4 then gives dequantise_gweights_s. The paper gives
tokens/s, but what a device takes shows in the seconds of a draft-verify cycle. They follow from the paper's
tokens/s and the acceptance length of its drafter (EAGLE-2, not our head). The constant is found with which
our naive_pp, which draws on D0 as the paper's does, takes as long for a cycle under replay.

Run: python -m testbed.tools.calibrate --data DIR [--samples N] [--mbps RATE] [--out DIR]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from flowedge.core.errors import BadRequestError
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.profiles import library
from flowedge_testbed.prompts import OWN
from flowedge_testbed.report.paper import lookup
from testbed.tools.sample_runs import SCENARIO, SampleRuns

DEVICE, METHOD, DATASET = "orin-nano-8gb", "naive_pp", "mt_bench"
# The EAGLE-2 paper has 4 to 5.5 tokens a cycle for its heads of these models at T=0.
EAGLE2_ACCEPTANCE = 4.75
GUESSES = {"memory_efficiency": (0.5, 0.8), "dequantise_gweights_s": (10.0, 40.0)}


@dataclass(frozen=True)
class Cycle:
    """A mean draft-verify cycle: its seconds, and the tokens that it puts out."""

    seconds: float
    tokens: float


def cycle_of(runs: SampleRuns, emulation: PipelineProfile) -> Cycle:
    """Return the mean cycle over all prompts."""
    records = runs.records(emulation, METHOD)
    rounds = sum(sum(1 for count in r.accepted_per_round if count) for r in records)
    tokens = sum(r.new_tokens - 1 for r in records)
    return Cycle(sum(r.decode_s for r in records) / rounds, tokens / rounds)


def solve(seconds: Callable[[float], float], target: float, first: float, second: float) -> float:
    """Return the constant c with seconds(c) = target, by secant steps in 1/c.

    `seconds` is about linear in 1/c; `first` and `second` are guesses of c.

    Raises:
        BadRequestError: when no positive constant reaches the target.
    """
    slow, fast = 1 / first, 1 / second
    at_slow, at_fast = seconds(first), seconds(second)
    for _ in range(8):
        if abs(at_fast - target) < 1e-4 * target or at_fast == at_slow:
            break
        following = fast + (target - at_fast) * (fast - slow) / (at_fast - at_slow)
        if following <= 0:
            raise BadRequestError(f"no constant makes a cycle take {target:.3f} s; even infinity is too slow")
        slow, at_slow = fast, at_fast
        fast = following
        at_fast = seconds(1 / fast)
    return 1 / fast


def on_device(emulation: PipelineProfile, device: DeviceProfile) -> PipelineProfile:
    """Return the same pipeline with every device replaced."""
    return replace(emulation, draft_node=device, stages=(device,) * len(emulation.stages))


def with_links(emulation: PipelineProfile, **changes: float) -> PipelineProfile:
    """Return the same pipeline with some values of every link replaced."""
    links = tuple(link.model_copy(update=changes) for link in emulation.links)
    return replace(emulation, links=links)


def target_cycle(model: str, acceptance: float = EAGLE2_ACCEPTANCE) -> tuple[float, float]:
    """Return the paper's tokens/s of naive_pp on MT-bench, and the seconds of its cycle that follow.

    Args:
        acceptance: tokens that a cycle of the paper's puts out.

    Raises:
        BadRequestError: when the paper has no figure of this model.
    """
    speed = lookup("table1_main", "T=0", model, METHOD, "tokens_per_s", DATASET)
    if not isinstance(speed, float):
        raise BadRequestError(f"the paper has no {METHOD} figure of {model}")
    return speed, acceptance / speed


def fitted(
    runs: SampleRuns, emulation: PipelineProfile, device: DeviceProfile, constant: str, cycle_s: float
) -> DeviceProfile:
    """Return the device with the constant with which a cycle on `emulation` takes `cycle_s` seconds."""

    def seconds(value: float) -> float:
        return cycle_of(runs, on_device(emulation, device.model_copy(update={constant: value}))).seconds

    value = solve(seconds, cycle_s, *GUESSES[constant])
    return device.model_copy(update={constant: float(f"{value:.3g}")})


def calibrate(runs: SampleRuns, mbps: float | None) -> DeviceProfile:
    """Find both constants and print how each follows; `mbps` replaces the rate of the links."""
    device = library.device(DEVICE)
    for model, quant, constant in (
        ("llama2-7b", "fp16", "memory_efficiency"),
        ("llama2-13b", "fp4", "dequantise_gweights_s"),
    ):
        emulation = runs.emulation(f"{model}-{quant}", METHOD)
        if mbps is not None:
            emulation = with_links(emulation, mbps=mbps)
        speed, target = target_cycle(model)
        device = fitted(runs, emulation, device, constant, target)
        cycle = cycle_of(runs, on_device(emulation, device))
        print(f"{model} in {quant}: the paper's {METHOD} makes {speed} tokens/s on MT-bench at T=0")
        print(f"    {EAGLE2_ACCEPTANCE} accepted a cycle / {speed} tokens/s = {target:.4f} s a cycle")
        print(f"    {constant} = {getattr(device, constant):.3g} gives {cycle.seconds:.4f} s a cycle")
        print(
            f"    our models put out {cycle.tokens:.2f} tokens a cycle: {cycle.tokens / cycle.seconds:.2f} "
            f"tokens/s, where the paper's acceptance would give {EAGLE2_ACCEPTANCE / cycle.seconds:.2f}"
        )
    return device


def check_bandwidth(runs: SampleRuns, device: DeviceProfile) -> None:
    """Print the effect of faster links on a cycle, here and in the published sweep, which is not fitted."""
    rates, speeds = (lookup("bandwidth_sweep_tokens_per_s", name) for name in ("mbps", METHOD))
    emulation = on_device(runs.emulation("llama2-7b-fp16", METHOD), device)
    ours = [cycle_of(runs, with_links(emulation, mbps=rates[i])).seconds for i in (0, -1)]
    theirs = [EAGLE2_ACCEPTANCE / speeds[i] for i in (0, -1)]
    print(f"check, {rates[0]} to {rates[-1]} Mbit/s: our cycle is shorter by {ours[0] - ours[1]:.4f} s,")
    print(f"    the published one by {theirs[0] - theirs[1]:.4f} s")


def main() -> None:
    """Print the constants of all Orin profiles."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=SCENARIO.parent, help="directory of mt_bench.jsonl")
    parser.add_argument("--samples", type=int, default=20, help="prompts")
    parser.add_argument("--mbps", type=float, help="rate of the links in Mbit/s; the profile's if not given")
    parser.add_argument("--out", type=Path, help="directory that keeps the true paths")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        models = ModelSet.load("bundled", ("bundled",))
        directory = arguments.out or Path(scratch)
        runs = SampleRuns(models, DATASET, arguments.data, arguments.samples, directory)
        if runs.dataset == OWN:
            print("mt_bench.jsonl is not in the directory: calibrating on the project's own prompts")
        device = calibrate(runs, arguments.mbps)
        check_bandwidth(runs, device)
    print(f"flowedge/bundled/profiles/devices/{DEVICE}.yaml:")
    print(f"    memory_efficiency: {device.memory_efficiency:.3g}")
    rate = device.dequantise_gweights_s
    assert isinstance(rate, float)
    print(f"    dequantise_gweights_s: {rate:.3g}")
    for name in ("orin-nx-16gb", "agx-orin-64gb"):
        other = library.device(name)
        scale = other.tflops / device.tflops
        print(
            f"flowedge/bundled/profiles/devices/{name}.yaml, the same efficiency, dequantisation by TFLOPS:"
        )
        print(f"    memory_efficiency: {device.memory_efficiency:.3g}")
        print(f"    dequantise_gweights_s: {rate * scale:.3g}")


if __name__ == "__main__":
    main()
