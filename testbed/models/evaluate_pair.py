"""Acceptance length of the EAGLE-2 draft tree: accepted and bonus tokens a draft-verify cycle.

The target's own output is computed once; since verification is lossless, a cycle accepts the longest path of
its tree that lies on that output, so no further target forward is needed.
`python -m testbed.models.evaluate_pair --target DIR --eagle DIR --data DIR --prompts FILE ...`
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from flowedge.drafting.eagle_head import EagleHead, KeyValueViews, load_eagle_head
from flowedge.training.looping import is_looping
from testbed.models.corpus import load_corpus
from testbed.models.generate_responses import continuations, prompt_tokens


@dataclass(frozen=True)
class TreeShape:
    """Size of the draft tree."""

    nodes: int = 80  # the root included
    depth: int = 6  # layers below the root
    width: int = 10  # frontier nodes a layer, and children a node


@dataclass(frozen=True)
class Node:
    """A drafted token."""

    parent: int  # index of the parent node, -1 for the root
    token: int
    score: float  # sum of log-probabilities from the root


@dataclass
class Score:
    """Acceptance over the outputs of one prompt set."""

    tokens: int = 0
    cycles: int = 0
    outputs: int = 0
    looping: int = 0
    by_output: list[float] = field(default_factory=list)


class TreeDrafter:
    """The head with its cache: true rows first, the rows of one tree after them."""

    def __init__(self, target: LlamaForCausalLM, head: EagleHead, capacity: int) -> None:
        self.target, self.head = target, head
        config = head.config
        shape = (config.num_key_value_heads or config.num_attention_heads, capacity, config.head_dim or 0)
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)
        self.cached = 0  # true rows

    def extend(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Append true rows (tokens [rows], the features [rows, hidden] before them); the last prediction."""
        rows = len(tokens)
        positions = torch.arange(self.cached, self.cached + rows)
        mask = torch.arange(self.cached + rows)[None] <= positions[:, None]
        predicted = self._forward(tokens, features, positions, mask)
        self.cached += rows
        return predicted[-1]

    def tree(self, feature: Tensor, shape: TreeShape) -> list[Node]:
        """The best nodes of the tree grown from the predicted feature [hidden] of the root, best first."""
        nodes: list[Node] = []
        frontier, features, visible = [-1], feature[None], torch.zeros(1, 0, dtype=torch.bool)
        for depth in range(shape.depth):
            layer = self._children(frontier, features, nodes, shape.width)
            first = len(nodes)
            nodes.extend(layer)
            if depth == shape.depth - 1:
                break
            order = sorted(range(len(layer)), key=lambda index: -layer[index].score)[: shape.width]
            rows = [frontier.index(layer[index].parent) for index in order]
            frontier = [first + index for index in order]
            # A row sees its parent's drafted rows and itself.
            visible = torch.cat([visible[rows], torch.eye(len(rows), dtype=torch.bool)], dim=1)
            tokens = torch.tensor([nodes[index].token for index in frontier])
            positions = torch.full((len(rows),), self.cached + depth)
            mask = torch.cat([torch.ones(len(rows), self.cached, dtype=torch.bool), visible], dim=1)
            features = self._forward(tokens, features[rows], positions, mask)
        return nodes

    def _children(self, frontier: list[int], features: Tensor, nodes: list[Node], width: int) -> list[Node]:
        """The `width` likeliest children of every frontier node, whose predicted features are given."""
        values, tokens = self.target.lm_head(features).log_softmax(dim=-1).topk(width)
        return [
            Node(parent, token, value + (nodes[parent].score if parent >= 0 else 0.0))
            for parent, row_values, row_tokens in zip(frontier, values.tolist(), tokens.tolist(), strict=True)
            for value, token in zip(row_values, row_tokens, strict=True)
        ]

    def _forward(self, tokens: Tensor, features: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        length = mask.shape[1]
        cache = KeyValueViews(self.keys[:, :length], self.values[:, :length])
        embeddings = self.target.model.embed_tokens(tokens)
        predicted: Tensor = self.head(embeddings, features, positions, cache, mask)
        return predicted


def accepted_length(nodes: list[Node], truth: list[int], budget: int) -> int:
    """Length of the longest path among the best `budget` nodes that spells the start of `truth`."""
    kept = sorted(range(len(nodes)), key=lambda index: (-nodes[index].score, index))[:budget]
    children = {(nodes[index].parent, nodes[index].token): index for index in kept}
    node, length = -1, 0
    while length < len(truth) and (node, truth[length]) in children:
        node = children[node, truth[length]]
        length += 1
    return length


@torch.no_grad()
def count_cycles(
    target: LlamaForCausalLM, head: EagleHead, prompt: list[int], answer: list[int], shape: TreeShape
) -> int:
    """Draft-verify cycles it takes to decode the answer after its first token, which prefill gives."""
    ids = torch.tensor(prompt + answer)
    features = target.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
    drafter = TreeDrafter(target, head, len(ids) + shape.width * shape.depth)
    done, cycles = len(prompt) + 1, 0
    while done < len(ids):
        start = drafter.cached
        feature = drafter.extend(ids[start + 1 : done], features[start : done - 1])
        nodes = drafter.tree(feature, shape)
        done += accepted_length(nodes, ids[done:].tolist(), shape.nodes - 1) + 1
        cycles += 1
    return cycles


def measure(
    target: LlamaForCausalLM,
    head: EagleHead,
    prompts: list[list[int]],
    temperature: float,
    new_tokens: int,
    shape: TreeShape,
) -> Score:
    """Acceptance over the outputs that do not loop."""
    score = Score()
    ordered = sorted(prompts, key=len)
    for start in range(0, len(ordered), 20):
        batch = ordered[start : start + 20]
        for prompt, answer in zip(batch, continuations(target, batch, temperature, new_tokens), strict=True):
            score.outputs += 1
            if is_looping(answer):
                score.looping += 1
            elif len(answer) > 1:
                cycles = count_cycles(target, head, prompt, answer, shape)
                score.tokens += len(answer) - 1
                score.cycles += cycles
                score.by_output.append((len(answer) - 1) / cycles)
    return score


def prompt_sets(
    tokenizer: PreTrainedTokenizerBase, data: Path | None, files: list[Path], limit: int
) -> Iterator[tuple[str, list[list[int]]]]:
    """(name, first-turn prompts as tokens) of the held-out pairs by source and of every prompt file."""
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
    parser.add_argument("--target", type=Path, required=True, help="folder of the target and its tokenizer")
    parser.add_argument("--eagle", type=Path, required=True, help="folder of the head")
    parser.add_argument("--data", type=Path, help="training data folder, for its held-out pairs")
    parser.add_argument("--prompts", type=Path, nargs="*", default=[], help="files of {turns: [text, ...]}")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--limit", type=int, default=40, help="prompts a set")
    parser.add_argument("--new-tokens", type=int, default=192)
    parser.add_argument("--nodes", type=int, default=TreeShape.nodes, help="tree nodes, root included")
    parser.add_argument("--depth", type=int, default=TreeShape.depth)
    parser.add_argument("--width", type=int, default=TreeShape.width, help="top-k")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.target)
    target = LlamaForCausalLM.from_pretrained(arguments.target, dtype=torch.float32)
    head = load_eagle_head(arguments.eagle, torch.float32)
    shape = TreeShape(arguments.nodes, arguments.depth, arguments.width)
    print(f"T={arguments.temperature} {shape} new tokens {arguments.new_tokens} seed {arguments.seed}")
    for name, prompts in prompt_sets(tokenizer, arguments.data, arguments.prompts, arguments.limit):
        score = measure(target, head, prompts, arguments.temperature, arguments.new_tokens, shape)
        print(
            f"{name:28s} acceptance {score.tokens / max(score.cycles, 1):.2f}"
            f"  looping {score.looping}/{score.outputs}"
            f"  counted {score.tokens} tokens in {score.cycles} cycles",
            flush=True,
        )


if __name__ == "__main__":
    main()
