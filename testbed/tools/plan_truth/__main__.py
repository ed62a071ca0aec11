"""`python -m testbed.tools.plan_truth`: tokens a second without drafts that plans predict, and that come."""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import LlamaConfig

from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble, release
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.planning.split import even_split
from testbed.tools.plan_truth.mixes import MIXES, Mix, running, why_not
from testbed.tools.random_model import write_model

LAYERS = 16
FIRST, TOKENS, ROUNDS = 16, 112, 3
_EXPECTED = re.compile(r"([\d.]+) tokens/s expected without drafts(?:, ([\d.]+) with an even division)?")


@dataclass(frozen=True)
class Forecast:
    """Tokens a second that a plan predicts for one division of the layers, and those that came."""

    title: str
    split: tuple[int, ...]
    predicted: float
    live: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.live


def live_rate(client: Client) -> float:
    """Return the tokens a second of plain decoding: the median of some answers, without their beginnings."""
    rates = []
    for _ in range(ROUNDS):
        answer = client.generate("Hello", max_new_tokens=TOKENS, ignore_eos=True, strategy="autoregressive")
        times: list[float] = []
        for chunk in answer:
            times += [time.monotonic()] * len(chunk.token_ids)
        rates.append((len(times) - FIRST) / (times[-1] - times[FIRST - 1]))
    return statistics.median(rates)


def measured(mix: Mix, model: Path, addresses: Sequence[str]) -> Iterator[Forecast]:
    """Yield the planned division, and the even one where the plan says what to expect of it."""
    draft_node, *stages = addresses
    spec = PipelineSpec(model=str(model), drafter="ngram", draft_node=draft_node, stages=tuple(stages))
    even = tuple(even_split(LAYERS, len(stages)))
    assemble(spec, lambda device, text: print(f"  {device}: {text}", file=sys.stderr))
    with Client(draft_node) as client:
        device = client.describe()
        found = _EXPECTED.search(device.plan)
        if found is None:
            raise SystemExit(f"{mix.title}: the layers were not planned: {device.plan!r}")
        yield Forecast(mix.title, device.stage_layers, float(found[1]), live_rate(client))
        if found[2] is None:
            return
        release([draft_node], "")
        assemble(spec.changed(split=even), lambda *_: None)
        yield Forecast(f"{mix.title}, evenly", even, float(found[2]), live_rate(client))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.plan_truth", description=__doc__)
    parser.add_argument("--mixes", type=int, default=len(MIXES), help="how many of the mixes")
    options = parser.parse_args()
    if (problem := why_not()) is not None:
        raise SystemExit(problem)
    rows = []
    with tempfile.TemporaryDirectory() as made:
        model = Path(made) / "model"
        config = LlamaConfig(
            hidden_size=960,
            intermediate_size=2560,
            num_attention_heads=15,
            num_key_value_heads=5,
            vocab_size=Checkpoint.open("bundled").config.vocab_size,
            num_hidden_layers=LAYERS,
            tie_word_embeddings=False,
        )
        write_model(model, config)
        for number, mix in enumerate(MIXES[: options.mixes]):
            folder = Path(made) / str(number)
            folder.mkdir()
            with running(mix, folder) as addresses:
                for row in measured(mix, model, addresses):
                    print(f"{row.title}: {row}", file=sys.stderr, flush=True)
                    rows.append(row)
    print("| boards | layers | predicted | live | predicted / live |\n|---|---|---:|---:|---:|")
    for row in rows:
        layers = ", ".join(map(str, row.split))
        print(f"| {row.title} | {layers} | {row.predicted:.1f} | {row.live:.1f} | {row.ratio:.2f} |")
    off = [abs(row.ratio - 1) for row in rows]
    print(f"\noff by {statistics.mean(off):.1%} on average, {max(off):.1%} at worst")


if __name__ == "__main__":
    main()
