"""Measure the acceptance length of drafters: tokens that a draft-verify cycle of an EAGLE-2 tree puts out.

The target's output is computed once. Verification is lossless, so a cycle accepts the longest path of its
tree that lies on that output, and no further forward of the target is needed.

Run: python -m testbed.tools.models.evaluate_pair --drafters bundled --drafters bundled ngram ...
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from flowedge.core.pipeline_config import drafter_label, drafter_names
from flowedge.core.tree import ROOT, DraftTree
from flowedge.drafting.choice import BUNDLED
from flowedge.drafting.drafter import Drafter, Frontier, GrowRequest
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.host.payloads import to_payload
from flowedge.models.lm_head import LMHead
from flowedge.strategies.events import Layer
from flowedge.strategies.growth import Growth
from flowedge.training.self_generation import is_looping
from testbed.tools.models.batched_decoding import continuations
from testbed.tools.models.generate_responses import prompt_tokens
from testbed.tools.models.texts.corpus import load_corpus

SESSION = "s"


@dataclass(frozen=True)
class TreeShape:
    """Size of the draft tree."""

    nodes: int = 80  # the root included
    depth: int = 6  # layers below the root
    width: int = 10  # frontier nodes a layer, and children a node


@dataclass
class Score:
    """The acceptance over some outputs."""

    tokens: int = 0
    cycles: int = 0


@dataclass(frozen=True)
class Output:
    """An answer of the target, with its hidden states for a drafter's taps.

    Attributes:
        rows: float32 [prompt and answer, hidden * (1 + taps)], as the last stage returns them.
    """

    prompt: list[int]
    answer: list[int]
    rows: torch.Tensor


def grow_tree(drafter: Drafter, number: int, root: int, context: int, shape: TreeShape) -> DraftTree:
    """Grow the draft tree below the last token of the session."""
    growth = Growth(number, root, context, shape.width, shape.depth)
    while not growth.finished:
        asked = growth.next_layer()
        frontier = Frontier(asked.nodes, asked.parents, asked.tokens)
        (layer,) = drafter.grow([GrowRequest(SESSION, number, frontier, asked.width)])
        growth.add(Layer(number, asked.nodes, layer.tokens, layer.log_probs))
    return growth.base


def accepted_length(tree: DraftTree, truth: list[int], budget: int) -> int:
    """Return the length of the longest path among the best `budget` nodes that is a prefix of `truth`."""
    kept = np.argsort(-tree.scores, kind="stable")[:budget].tolist()
    children = {(int(tree.parents[node]), int(tree.tokens[node])): node for node in kept}
    node, length = ROOT, 0
    while length < len(truth) and (node, truth[length]) in children:
        node = children[node, truth[length]]
        length += 1
    return length


def count_cycles(drafter: Drafter, output: Output, shape: TreeShape) -> int:
    """Return the draft-verify cycles that the answer takes after its first token, which prefill gives."""
    ids = [*output.prompt, *output.answer]
    drafter.open(SESSION, len(ids), ids[0])
    known, done, cycles = 1, len(output.prompt) + 1, 0
    while done < len(ids):
        features = to_payload(output.rows[known - 1 : done - 1]) if drafter.needs_features else None
        tokens = np.array(ids[known:done], dtype=np.int64)
        drafter.grow([GrowRequest.extension(SESSION, features, tokens)])
        known = done
        tree = grow_tree(drafter, cycles, ids[done - 1], done, shape)
        done += accepted_length(tree, ids[done:], shape.nodes) + 1
        cycles += 1
    drafter.close(SESSION)
    return cycles


@torch.no_grad()
def target_rows(target: LlamaForCausalLM, ids: list[int], taps: tuple[int, ...]) -> torch.Tensor:
    """Return the hidden states of a prompt and its answer (see Output)."""
    states = target.model(torch.tensor([ids]), use_cache=False, output_hidden_states=True).hidden_states
    return torch.cat([states[index][0] for index in (-1, *taps)], dim=1)


def answered(
    target: LlamaForCausalLM, prompts: list[list[int]], temperature: float, new_tokens: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Return (prompt, answer) of each prompt, the shortest first."""
    ordered = sorted(prompts, key=len)
    for start in range(0, len(ordered), 20):
        batch = ordered[start : start + 20]
        yield from zip(batch, continuations(target, batch, temperature, new_tokens), strict=True)


def prompt_sets(
    tokenizer: PreTrainedTokenizerBase, data: Path | None, files: list[Path], limit: int
) -> Iterator[tuple[str, list[list[int]]]]:
    """Yield (name, first-turn prompts as tokens) of held-out pairs by source and of every prompt file."""
    sets: dict[str, list[str]] = {}
    if data is not None:
        for pair in load_corpus(data).held_out_pairs:
            sets.setdefault(f"held-out {pair.source}", []).append(pair.prompt)
    for path in files:
        with path.open(encoding="utf-8") as lines:
            sets[path.stem] = [json.loads(line)["turns"][0] for line in lines]
    for name, texts in sets.items():
        yield name, [prompt_tokens(tokenizer, text) for text in texts[:limit]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", default="bundled", help="bundled, or a Llama's folder with its tokenizer")
    parser.add_argument(
        "--drafters", nargs="+", action="append", help="names joined to one drafter; repeat it for another"
    )
    parser.add_argument("--data", type=Path, help="training data folder, for its held-out pairs")
    parser.add_argument("--prompts", type=Path, nargs="*", default=[], help="files of {turns: [text, ...]}")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--limit", type=int, default=40, help="prompts a set")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--nodes", type=int, default=TreeShape.nodes, help="tree nodes, root included")
    parser.add_argument("--depth", type=int, default=TreeShape.depth)
    parser.add_argument("--width", type=int, default=TreeShape.width, help="top-k")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    checkpoint = Checkpoint.open(arguments.target)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.directory)
    target = LlamaForCausalLM.from_pretrained(checkpoint.directory, dtype=torch.float32)
    choice = TargetModel(checkpoint, LMHead.load(checkpoint), tokenizer, torch.float32)
    chosen = [drafter_names(names) for names in arguments.drafters or [BUNDLED]]
    drafters = {drafter_label(names): load_drafter(names, choice) for names in chosen}
    shape = TreeShape(arguments.nodes, arguments.depth, arguments.width)
    print(f"T={arguments.temperature} {shape} new tokens {arguments.new_tokens} seed {arguments.seed}")
    for title, prompts in prompt_sets(tokenizer, arguments.data, arguments.prompts, arguments.limit):
        scores = {name: Score() for name in drafters}
        looping = 0
        for prompt, answer in answered(target, prompts, arguments.temperature, arguments.new_tokens):
            if is_looping(answer):
                looping += 1
                continue
            for name, drafter in drafters.items():
                if drafter is None:
                    parser.error(f"--drafters {name}: nothing drafts")
                rows = target_rows(target, [*prompt, *answer], tuple(drafter.taps))
                scores[name].tokens += len(answer) - 1
                scores[name].cycles += count_cycles(drafter, Output(prompt, answer, rows), shape)
        print(f"{title}: {looping} of {len(prompts)} outputs loop and are not counted")
        for name, score in scores.items():
            length = score.tokens / max(score.cycles, 1)
            print(f"  {name:24s} {length:.2f} ({score.tokens} tokens, {score.cycles} cycles)", flush=True)


if __name__ == "__main__":
    main()
