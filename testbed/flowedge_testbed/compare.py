"""Compare the paced clock with another: `python -m flowedge_testbed.compare SCENARIO --out DIR`.

Both clocks carry out the same scenario, a shipped one by name or a .yaml file. The table has tokens/s by each
clock and their ratio. A ratio away from 1 is time that the model of time leaves out or adds, or the machine
was too busy. The last column has the share of jobs that computed for longer than on the emulated device.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowedge.core.pipeline_config import drafter_names
from flowedge_testbed.bench.benchmark import run_bench
from flowedge_testbed.bench.options import BenchOptions
from flowedge_testbed.bench.progress import bench_progress
from flowedge_testbed.scenario import find_scenario

TOLERANCE = 0.05  # of a method's tokens/s


@dataclass(frozen=True)
class Compared:
    """One entry of the results by both clocks; tokens/s after the first token, TTFT in ms.

    Attributes:
        overrun_share: share of this method's paced jobs that overran; None if they ran at another time.
    """

    where: str
    method: str
    model_tokens_per_s: float
    paced_tokens_per_s: float
    model_ttft_ms: float
    paced_ttft_ms: float
    overrun_share: float | None = None

    @property
    def ratio(self) -> float:
        return self.paced_tokens_per_s / self.model_tokens_per_s


def compared(
    model: Sequence[dict[str, Any]], paced: Sequence[dict[str, Any]], schedule: Mapping[str, Any]
) -> list[Compared]:
    """Match the entries of two results: same method, model, point of the sweep and prompts.

    Entries without tokens/s, whose answers have one token, are left out.

    Args:
        schedule: how well the paced clock's schedule was kept, by method.
    """
    found = {_key(entry): entry for entry in paced}
    return [
        Compared(
            where=" ".join(str(part) for part in _key(entry)[:-1]),
            method=entry["method"],
            model_tokens_per_s=entry["tokens_per_s"],
            paced_tokens_per_s=found[_key(entry)]["tokens_per_s"],
            model_ttft_ms=entry["ttft_ms"],
            paced_ttft_ms=found[_key(entry)]["ttft_ms"],
            overrun_share=schedule.get(entry["method"], {}).get("overrun_share"),
        )
        for entry in model
        if _key(entry) in found and None not in (entry["tokens_per_s"], found[_key(entry)]["tokens_per_s"])
    ]


def table(rows: Sequence[Compared], clock: str) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        f"| On | Method | {clock}, tokens/s | paced, tokens/s | ratio | {clock}, TTFT ms | paced, TTFT ms | "
        "overran |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row.where} | {row.method} | {row.model_tokens_per_s:.3f} | {row.paced_tokens_per_s:.3f} | "
        f"{row.ratio:.3f} | {row.model_ttft_ms:.0f} | {row.paced_ttft_ms:.0f} | "
        f"{'' if row.overrun_share is None else f'{row.overrun_share:.1%}'} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table; exit with status 1 if a ratio is further from 1 than the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("scenario", help="name of a shipped scenario, or a .yaml file")
    parser.add_argument("--out", type=Path, required=True, help="directory of both results")
    parser.add_argument("--clock", choices=("replay", "virtual"), default="replay", help="the other clock")
    parser.add_argument("--strategies", help="methods, separated by commas")
    parser.add_argument("--temperatures", help="temperatures, separated by commas")
    parser.add_argument("--drafter", action="append", help="as in flowedge generate")
    parser.add_argument("--samples", type=int, help="prompts of each dataset")
    parser.add_argument("--data", type=Path, help="directory of the datasets' files")
    arguments = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for clock in (arguments.clock, "paced"):
        options = BenchOptions(
            scenario=find_scenario(arguments.scenario),
            out=arguments.out / clock,
            clock=clock,
            strategies=tuple(arguments.strategies.split(",")) if arguments.strategies else None,
            temperatures=(
                tuple(map(float, arguments.temperatures.split(","))) if arguments.temperatures else None
            ),
            samples=arguments.samples,
            drafter=drafter_names(arguments.drafter) if arguments.drafter else None,
            data=arguments.data,
            processes=1,
        )
        with bench_progress() as progress:
            run_bench(options, progress)
        results[clock] = json.loads((options.out / "results.json").read_text(encoding="utf-8"))
    facts = json.loads((arguments.out / "paced" / "run.json").read_text(encoding="utf-8"))
    by_method = facts.get("schedule_by_method", {})
    rows = compared(results[arguments.clock]["runs"], results["paced"]["runs"], by_method)
    print(table(rows, arguments.clock))
    off = [row.method for row in rows if abs(row.ratio - 1) > TOLERANCE]
    if off:
        raise SystemExit(f"further than {TOLERANCE:.0%} from the {arguments.clock} clock: {', '.join(off)}")


def _key(entry: dict[str, Any]) -> tuple[Any, ...]:
    point = " ".join(f"{axis}={value:g}" for axis, value in entry.get("point", {}).items())
    return (entry["profile"], point, entry["dataset"], entry["temperature"], entry["noise"], entry["method"])


if __name__ == "__main__":
    main()
