"""One file of examples for `flowedge train-drafter`: the target's own responses, and a share of the corpus.

`python -m testbed.tools.models.drafter_data --data DIR --responses FILE --out FILE`
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from testbed.tools.models.packing import REPEATS
from testbed.tools.models.texts.corpus import ChatPair, jsonl_file_pairs, load_corpus


def drafter_examples(
    pairs: list[ChatPair], responses: list[ChatPair], share: float, seed: int
) -> list[ChatPair]:
    """Return all responses and a `share` of the corpus's pairs, drawn with the target's training weights."""
    drawn = np.random.default_rng(seed).random(len(pairs))
    chosen = [
        pair
        for pair, number in zip(pairs, drawn, strict=True)
        if number < share * REPEATS.get(pair.source, 1.0)
    ]
    return [*responses, *chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of *.jsonl with prompt and response")
    parser.add_argument("--responses", type=Path, nargs="+", required=True, help="of generate_responses")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines of {prompt, response}")
    parser.add_argument("--share", type=float, default=0.5, help="of the corpus")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    responses = [pair for path in arguments.responses for pair in jsonl_file_pairs(path)]
    pairs = load_corpus(arguments.data).training_pairs
    examples = drafter_examples(pairs, responses, arguments.share, arguments.seed)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", encoding="utf-8") as lines:
        for example in examples:
            lines.write(json.dumps({"prompt": example.prompt, "response": example.response}) + "\n")
    print(f"{len(responses)} responses and {len(examples) - len(responses)} pairs -> {arguments.out}")


if __name__ == "__main__":
    main()
