"""Measure how often a tree level holds the drawn token, by the width of SpecPipe's tree, at temperature 0.

The prompts are the project's own, which no benchmark uses. The rates decide a pipeline's width
(specpipe_width.py).

With --top-k the tool prints instead how often the drawn token is among the k likeliest of the drafter below
the true text (pipedec, figure 3; specpipe, figure 7), for a dataset of --data if one is named.

Run: python -m testbed.tools.hit_rates [--model M] [--drafter D] --out FILE
     python -m testbed.tools.hit_rates [--model M] [--drafter D] --top-k [--dataset NAME --data DIR]
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
from flowedge_testbed.replay.path_drafter import PathDrafter
from flowedge_testbed.replay.token_ranks import token_ranks, top_k_rates
from testbed.tools.sample_runs import SampleRuns

WIDTHS = (4, 8, 16, 32, 64, 128)
SAMPLES = 24
RANKS = (1, 2, 4, 8, 16, 32, 64)
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
        model=models.facts.fingerprint,
        drafter=models.drafter_fingerprint,
        rates=rates,
    )


def rank_rates(models: ModelSet, dataset: str, data: Path, directory: Path) -> dict[int, float]:
    """Return the share of drawn tokens among the k likeliest of the drafter, by k."""
    ranks: list[int] = []
    for path in SampleRuns(models, dataset, data, SAMPLES, directory).paths():
        drafter = PathDrafter(models.drafter, path, "ranks")
        ranks += token_ranks(drafter, path, max(RANKS))
        drafter.close()
    return top_k_rates(ranks, RANKS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="bundled", help="bundled, a directory or a hub id")
    parser.add_argument("--drafter", action="append", help="as in flowedge generate; bundled if not given")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="a .yaml file for the hit rates of levels")
    what.add_argument("--top-k", action="store_true", help="print the hit rates of the k likeliest tokens")
    parser.add_argument("--dataset", default=OWN, help="of --top-k: a file's name without .jsonl")
    parser.add_argument("--data", type=Path, default=Path(), help="the directory of the dataset's file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    drafter = drafter_names(arguments.drafter or BUNDLED)
    models = ModelSet.load(arguments.model, drafter)
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.top_k:
            found = rank_rates(models, arguments.dataset, arguments.data, Path(scratch))
            print("\n".join(f"top {k}: {rate:.1%}" for k, rate in found.items()))
            return
        rates = measure(models, f"{arguments.model} with {drafter_label(drafter)}", Path(scratch))
    arguments.out.write_text(yaml.safe_dump(rates.model_dump(), sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    main()
