"""The target's own answers to training prompts, to train the draft head on.

`python -m testbed.models.generate_responses --data DIR --target DIR --out FILE --minutes 10`
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from flowedge.training.looping import is_looping
from testbed.models.corpus import Pair, load_corpus
from testbed.models.packing import REPEATS

MAX_PROMPT_TOKENS = 400


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """A one-turn conversation up to and including the assistant marker."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def prompt_batches(
    tokenizer: PreTrainedTokenizerBase, pairs: list[Pair], rows: int, seed: int
) -> Iterator[list[list[int]]]:
    """Endless batches of prompts of like length, drawn with the weights of training."""
    generator = np.random.default_rng(seed)
    weights = np.array([REPEATS.get(pair.source, 1.0) for pair in pairs])
    while True:
        chosen = generator.choice(len(pairs), size=16 * rows, p=weights / weights.sum(), replace=False)
        prompts = [prompt_tokens(tokenizer, pairs[index].prompt) for index in chosen]
        prompts = sorted((prompt for prompt in prompts if len(prompt) <= MAX_PROMPT_TOKENS), key=len)
        starts = np.arange(0, len(prompts), rows)
        for start in generator.permutation(starts):
            yield prompts[start : start + rows]


@torch.no_grad()
def continuations(
    model: LlamaForCausalLM, prompts: list[list[int]], temperature: float, new_tokens: int
) -> list[list[int]]:
    """The model's answer to each prompt, eos included where it came within `new_tokens`."""
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    settings = GenerationConfig.from_model_config(model.config)
    settings.max_new_tokens = new_tokens
    if temperature > 0:
        settings.do_sample, settings.temperature, settings.top_k = True, temperature, 0
    output = model.generate(  # type: ignore[misc]
        input_ids=ids, attention_mask=mask, generation_config=settings
    )
    answers: list[list[int]] = output[:, width:].tolist()
    return [answer[: answer.index(eos) + 1] if eos in answer else answer for answer in answers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of *.jsonl with prompt and response")
    parser.add_argument("--target", type=Path, required=True, help="folder of the target and its tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines of {temperature, tokens}")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--rows", type=int, default=64, help="prompts a batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.target)
    model = LlamaForCausalLM.from_pretrained(arguments.target, dtype=torch.float32)
    batches = prompt_batches(
        tokenizer, load_corpus(arguments.data).training_pairs, arguments.rows, arguments.seed
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    started, kept, looping, tokens = time.monotonic(), 0, 0, 0
    with arguments.out.open("w", encoding="utf-8") as lines:
        turn = 0
        while time.monotonic() - started < 60 * arguments.minutes:
            temperature = arguments.temperatures[turn % len(arguments.temperatures)]
            turn += 1
            prompts = next(batches)
            answers = continuations(model, prompts, temperature, arguments.new_tokens)
            for prompt, answer in zip(prompts, answers, strict=True):
                if is_looping(answer):
                    looping += 1
                    continue
                kept += 1
                tokens += len(answer)
                lines.write(json.dumps({"temperature": temperature, "tokens": prompt + answer}) + "\n")
            rate = tokens / (time.monotonic() - started)
            print(f"{kept} answers, {tokens} tokens, {looping} looping, {rate:.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
