"""Prints why the quantisations of bitsandbytes cannot be used on this device; nothing if they can."""

from __future__ import annotations

from flowedge.device.compute import CPU, has_gpu, try_device

NEEDED = ("llm-int8", "nf4", "fp4")

if __name__ == "__main__":
    trial = try_device("cuda" if has_gpu() else CPU)
    problems = [
        f"{quant}: {trial.quant_problems[quant]}" for quant in NEEDED if quant in trial.quant_problems
    ]
    print(trial.problem or "; ".join(problems), end="")
