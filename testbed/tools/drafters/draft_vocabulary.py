"""Measure a drafter over a part of the vocabulary: what the part covers, and the acceptance length it leaves.

The tokens are ranked by their frequency in the responses of training text, and measured on the target's
answers to other prompts. With --out the ranking is written as a profile, by which a benchmark's real drafter
drafts where a scenario has a draft_vocabulary.

Run: python -m testbed.tools.drafters.draft_vocabulary --data DIR --prompts FILE ... [--out FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import yaml
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from flowedge.core.arrays import IntArray
from flowedge.core.pipeline_config import DraftQuant, drafter_label, drafter_names
from flowedge.drafting.choice import BUNDLED
from flowedge.drafting.draft_vocabulary import DraftVocabulary
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.drafter_format import DrafterFormat
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.drafting.token_counts import TokenCounts
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.host.payloads import torch_dtype
from flowedge.models.lm_head import LMHead
from flowedge.training.self_generation import is_looping
from flowedge_testbed.profiles.documents import TokenRanking
from testbed.tools.models.evaluate_pair import (
    Output,
    Score,
    TreeShape,
    answered,
    count_cycles,
    prompt_sets,
    target_rows,
)
from testbed.tools.models.texts.corpus import jsonl_pairs

SIZES = (256, 512, 1024, 2048)
LEARNT = (5_000, 20_000, 50_000, 200_000, None)  # tokens; None is all
HELD_OUT = 2000  # responses that nothing is learned from


def responses(tokenizer: PreTrainedTokenizerBase, data: Path) -> list[IntArray]:
    """Return the tokens of each response in every *.jsonl file of a folder, with its end, in random order."""
    encoded: list[IntArray] = []
    for pair in jsonl_pairs(data):
        ids: list[int] = tokenizer.encode(pair.response, add_special_tokens=False)
        encoded.append(np.array([*ids, tokenizer.eos_token_id], dtype=np.int64))
    return [encoded[place] for place in np.random.default_rng(0).permutation(len(encoded))]


def counted(texts: Iterable[IntArray], vocab_size: int, most: int | None = None) -> TokenCounts:
    """Count the first `most` tokens of these texts; all of them if it is None."""
    counts = TokenCounts(vocab_size)
    for tokens in texts:
        counts.add(tokens if most is None else tokens[: most - counts.total])
    return counts


def print_learning(texts: Sequence[IntArray], vocab_size: int, sizes: Sequence[int]) -> None:
    """Print what the most frequent tokens of some text cover of other text, by the length of the first."""
    other = counted(texts[:HELD_OUT], vocab_size)
    for most in LEARNT:
        counts = counted(texts[HELD_OUT:], vocab_size, most)
        parts = (f"{size}: {other.coverage(counts.most_frequent(size)):.1%}" for size in sizes)
        print(f"  learned from {counts.total} tokens, the most frequent cover  {'  '.join(parts)}")


@dataclass
class FormScore:
    """The acceptance of a drafter over a part of the vocabulary, in a format.

    Attributes:
        seconds: of the processor, spent on drafting.
    """

    size: int
    quant: DraftQuant
    drafter: Drafter
    score: Score = field(default_factory=Score)
    seconds: float = 0.0

    def line(self, covered: float) -> str:
        length = self.score.tokens / max(self.score.cycles, 1)
        milliseconds = self.seconds * 1e3 / max(self.score.cycles, 1)
        return (
            f"{self.size:6d} tokens cover {covered:.1%}, {self.quant:4s}: acceptance length {length:.2f}, "
            f"{milliseconds:.2f} ms of drafting a cycle"
        )


def made_forms(
    names: tuple[str, ...],
    target: TargetModel,
    counts: TokenCounts,
    sizes: Sequence[int],
    quants: Sequence[DraftQuant],
) -> list[FormScore]:
    """Return the drafter of these names in every size and format, and over the whole vocabulary."""
    forms = []
    for size in (*sizes, target.vocab_size):
        part = None if size == target.vocab_size else DraftVocabulary.of(counts, size)
        for quant in quants:
            drafter = load_drafter(names, replace(target, form=DrafterFormat(quant), vocabulary=part))
            if drafter is None:
                raise SystemExit("--drafter none drafts nothing")
            forms.append(FormScore(size, quant, drafter))
    return forms


def measure(
    target: LlamaForCausalLM,
    forms: Sequence[FormScore],
    sets: Iterable[tuple[str, list[list[int]]]],
    temperature: float,
    new_tokens: int,
) -> list[list[int]]:
    """Score every form over the answers that do not loop, and return these answers."""
    answers: list[list[int]] = []
    for _, prompts in sets:
        for prompt, answer in answered(target, prompts, temperature, new_tokens):
            if is_looping(answer):
                continue
            answers.append(answer)
            rows = target_rows(target, [*prompt, *answer], tuple(forms[0].drafter.taps))
            for form in forms:
                began = time.process_time()
                form.score.cycles += count_cycles(form.drafter, Output(prompt, answer, rows), TreeShape())
                form.seconds += time.process_time() - began
                form.score.tokens += len(answer) - 1
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", default=BUNDLED, help="bundled, or a Llama's folder with its tokenizer")
    parser.add_argument("--drafter", action="append", help="as in flowedge generate; bundled if not given")
    parser.add_argument("--data", type=Path, required=True, help="folder of {prompt, response} files")
    parser.add_argument("--prompts", type=Path, nargs="*", default=[], help="files of {turns: [text, ...]}")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--quants", nargs="+", choices=("none", "int8", "int4"), default=["none"])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the drafter")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--limit", type=int, default=10, help="prompts a set")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, help="a .yaml file for the ranking")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    checkpoint = Checkpoint.open(arguments.target)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.directory)
    texts, vocab_size = responses(tokenizer, arguments.data), int(checkpoint.config.vocab_size)
    counts = counted(texts, vocab_size)
    print(f"{counts.total} tokens of {arguments.data}")
    print_learning(texts, vocab_size, arguments.sizes)
    if arguments.out is not None:
        ranking = TokenRanking(
            title=arguments.target,
            source=f"python -m testbed.tools.drafters.draft_vocabulary, {counts.total} tokens of responses",
            model=checkpoint.fingerprint,
            ids=counts.most_frequent(counts.vocab_size).tolist(),
        )
        written = yaml.safe_dump(ranking.model_dump(), sort_keys=False, default_flow_style=None, width=118)
        arguments.out.write_text(written, encoding="utf-8")
    if not arguments.prompts:
        return
    target = LlamaForCausalLM.from_pretrained(checkpoint.directory, dtype=torch.float32)
    dtype = torch_dtype(arguments.dtype)
    choice = TargetModel(checkpoint, LMHead.load(checkpoint, dtype), tokenizer, dtype)
    names = drafter_names(arguments.drafter or BUNDLED)
    forms = made_forms(names, choice, counts, arguments.sizes, arguments.quants)
    sets = prompt_sets(tokenizer, None, arguments.prompts, arguments.limit)
    answers = measure(target, forms, sets, arguments.temperature, arguments.new_tokens)
    drawn = TokenCounts(counts.vocab_size)
    for answer in answers:
        drawn.add(np.array(answer, dtype=np.int64))
    print(f"{drafter_label(names)}, T={arguments.temperature}, {len(answers)} answers, {drawn.total} tokens")
    for form in forms:
        print("  " + form.line(drawn.coverage(counts.most_frequent(form.size))), flush=True)


if __name__ == "__main__":
    main()
