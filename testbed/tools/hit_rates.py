"""Measure how often a tree level holds the drawn token, by the width of SpecPipe's tree, at temperature 0.

The prompts are the project's own, which no benchmark uses. The rates decide a pipeline's width
(fitted_options.py).

Run: python -m testbed.tools.hit_rates [--model M] [--drafter D] --out FILE
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import yaml

from flowedge.core.pipeline_config import drafter_label, drafter_names
from flowedge.drafting.choice import BUNDLED
from flowedge.strategies.published.stepwise import SpecPipe
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.profiles.documents import HitRates
from flowedge_testbed.prompts import OWN
from flowedge_testbed.record import RunRecord
from testbed.tools.sample_runs import SampleRuns

WIDTHS = (4, 8, 16, 32, 64, 128)
SAMPLES = 24
PIPELINE = "llama2-7b-fp16"  # what it costs matters little: levels follow one another on any pipeline


def hit_rate(records: Sequence[RunRecord]) -> float:
    """Return the share of levels that hold the drawn token: every round but the last ends with a miss."""
    levels = sum(record.new_tokens - 1 for record in records)
    misses = sum(len(record.accepted_per_round) - 1 for record in records)
    return 1 - misses / levels if levels else 0.0


def measure(models: ModelSet, names: str, directory: Path) -> HitRates:
    """Measure and print the rates of the models; `names` is their title in the profile."""
    runs = SampleRuns(models, OWN, directory, SAMPLES, directory)
    emulation = runs.emulation(PIPELINE, SpecPipe.name)
    rates: dict[int, float] = {}
    for width in WIDTHS:
        rates[width] = round(hit_rate(runs.records(emulation, SpecPipe.name, (("width", width),))), 4)
        print(f"width {width}: {rates[width]:.1%}")
    return HitRates(
        title=names,
        source=f"python -m testbed.tools.hit_rates, {SAMPLES} of the project's own prompts, temperature 0",
        model=models.checkpoint.fingerprint,
        drafter=models.drafter_fingerprint,
        rates=rates,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="bundled", help="bundled, a directory or a hub id")
    parser.add_argument("--drafter", action="append", help="as in flowedge generate; bundled if not given")
    parser.add_argument("--out", type=Path, required=True, help="a .yaml file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    drafter = drafter_names(arguments.drafter or BUNDLED)
    models = ModelSet.load(arguments.model, drafter)
    with tempfile.TemporaryDirectory() as scratch:
        rates = measure(models, f"{arguments.model} with {drafter_label(drafter)}", Path(scratch))
    arguments.out.write_text(yaml.safe_dump(rates.model_dump(), sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    main()
