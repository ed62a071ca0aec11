"""Generate the target's answers to training prompts, on which drafters are trained.

Run: python -m testbed.tools.models.generate_responses --data DIR --target DIR --out FILE --minutes 10
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from flowedge.training.self_generation import is_looping
from testbed.tools.models.batched_decoding import continuations
from testbed.tools.models.packing import REPEATS
from testbed.tools.models.schedule import DTYPE_HELP, DTYPES
from testbed.tools.models.texts.corpus import ChatPair, load_corpus
from testbed.tools.models.texts.everyday import everyday

MAX_PROMPT_TOKENS = 400
EVERYDAY = 4000  # short questions beside the corpus


@dataclass(frozen=True)
class Prompt:
    """A user message, as text and as the tokens of a conversation that begins with it."""

    text: str
    tokens: list[int]


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Return a one-turn conversation up to and including the assistant marker."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def prompt_batches(
    tokenizer: PreTrainedTokenizerBase, pairs: list[ChatPair], rows: int, seed: int
) -> Iterator[list[Prompt]]:
    """Yield batches of prompts of similar length without end, drawn with the weights of training."""
    generator = np.random.default_rng(seed)
    weights = np.array([REPEATS.get(pair.source, 1.0) for pair in pairs])
    while True:
        chosen = generator.choice(len(pairs), size=16 * rows, p=weights / weights.sum(), replace=False)
        texts = [pairs[index].prompt for index in chosen]
        prompts = [Prompt(text, prompt_tokens(tokenizer, text)) for text in texts]
        fitting = [prompt for prompt in prompts if len(prompt.tokens) <= MAX_PROMPT_TOKENS]
        fitting.sort(key=lambda prompt: len(prompt.tokens))
        for start in generator.permutation(np.arange(0, len(fitting), rows)):
            yield fitting[start : start + rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of *.jsonl with prompt and response")
    parser.add_argument("--target", type=Path, required=True, help="folder of the target and its tokenizer")
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON lines of {prompt, response, temperature}"
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--rows", type=int, default=192, help="prompts a batch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help=DTYPE_HELP)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.target)
    model = LlamaForCausalLM.from_pretrained(arguments.target, dtype=getattr(torch, arguments.dtype))
    asked = [each.as_pair("everyday") for each in everyday(EVERYDAY, seed=1) if not each.begins]
    pairs = [*load_corpus(arguments.data).training_pairs, *asked]
    batches = prompt_batches(tokenizer, pairs, arguments.rows, arguments.seed)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    started, kept, looping, tokens = time.monotonic(), 0, 0, 0
    with arguments.out.open("w", encoding="utf-8") as lines:
        turn = 0
        while time.monotonic() - started < 60 * arguments.minutes:
            temperature = arguments.temperatures[turn % len(arguments.temperatures)]
            turn += 1
            prompts = next(batches)
            answers = continuations(
                model, [prompt.tokens for prompt in prompts], temperature, arguments.new_tokens
            )
            for prompt, answer in zip(prompts, answers, strict=True):
                text = str(tokenizer.decode(answer, skip_special_tokens=True))
                if is_looping(answer) or not text.strip():
                    looping += 1
                    continue
                kept += 1
                tokens += len(answer)
                entry = {"prompt": prompt.text, "response": text, "temperature": temperature}
                lines.write(json.dumps(entry) + "\n")
            lines.flush()
            rate = tokens / (time.monotonic() - started)
            print(f"{kept} answers, {tokens} tokens, {looping} left out, {rate:.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
