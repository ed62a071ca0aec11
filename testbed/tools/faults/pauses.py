"""How long an answer stands still when its last stage is killed, by the length of its context.

python -m testbed.tools.faults.pauses [--contexts 128,512,2048,8000] [--times 3]

A spare takes the place of the stage, and the rows of the context are computed again. Beside it, how long the
same context takes as a prompt, with all devices well. The model has random weights (six layers, 576 wide).
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import LlamaConfig

from flowedge.client import Client
from flowedge.cluster.process import Security
from flowedge.core.errors import DeadlineError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from testbed.tools.faults.boards import Shelf
from testbed.tools.random_model import write_model

_BEFORE = 8  # tokens before the stage is killed
_AFTER = 8
_PREPARED_S = 10.0  # in which a spare imports its libraries
_READY_S = 180.0


@dataclass(frozen=True)
class Pause:
    """Of one answer, in seconds: until its first token, and the longest time between two tokens."""

    first_s: float
    pause_s: float


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--contexts", default="128,512,2048,8000", help="tokens, by commas")
    parser.add_argument("--times", type=int, default=3, help="answers of each length")
    options = parser.parse_args()
    contexts = [int(each) for each in options.contexts.split(",")]
    with tempfile.TemporaryDirectory(prefix="flowedge-pauses-") as made:
        model = Path(made) / "model"
        write_model(model, _config(max(contexts) + 64))
        pipeline = {"model": str(model), "drafter": "ngram", "quant": "int8"}
        deadlines = {"flapping_s": 0.0}  # the stage that is killed again and again is not left out
        with Shelf(Path(made), 2, 1, None, pipeline=pipeline, deadlines=deadlines) as shelf:
            shelf.await_answer()
            print("| Tokens | first token, s | pause, s | pause less the first token, s |")
            print("| ---: | ---: | ---: | ---: |", flush=True)
            for context in contexts:
                found = list(_pauses(shelf, context, options.times))
                first = statistics.median(each.first_s for each in found)
                pause = statistics.median(each.pause_s for each in found)
                print(f"| {context} | {first:.2f} | {pause:.2f} | {pause - first:.2f} |", flush=True)


def _pauses(shelf: Shelf, context: int, times: int) -> Iterator[Pause]:
    rng = random.Random(context)
    last = shelf.boards["v2"]
    with Client(shelf.boards["d0"].address, security=Security(None, insecure=True)) as client:
        for _ in range(times):
            _await_stages(client, [shelf.boards[name].address for name in ("v1", "v2")])
            time.sleep(_PREPARED_S)
            prompt = [rng.randrange(10, 1000) for _ in range(context)]
            moved = time.monotonic()
            killed, gaps = False, list[float]()
            answer = client.generate(prompt_ids=prompt, max_new_tokens=_BEFORE + _AFTER, ignore_eos=True)
            for _ in answer:
                now = time.monotonic()
                gaps.append(now - moved)
                moved = now
                if not killed and len(answer.token_ids) >= _BEFORE:
                    killed = True
                    last.end(signal.SIGKILL)
                    moved = time.monotonic()
            yield Pause(gaps[0], max(gaps[1:]))
            last.start()


def _await_stages(client: Client, stages: Sequence[str]) -> None:
    """Wait until the pipeline has these stages, the last of which was started again."""
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        device = client.describe()
        if not device.not_ready and list(device.stage_addresses) == list(stages):
            return
        time.sleep(0.5)
    raise DeadlineError(f"the pipeline did not have its stages within {_READY_S:g} s")


def _config(positions: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=Checkpoint.open("bundled").config.vocab_size,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
    )


if __name__ == "__main__":
    main()
