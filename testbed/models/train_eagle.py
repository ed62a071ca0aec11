"""Train the EAGLE head on a frozen target's features.

`python -m testbed.models.train_eagle --data DIR --responses FILE --target DIR --out DIR --minutes 25`
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from flowedge.drafting.eagle_head import EagleHead, save_eagle_head
from flowedge.training.new_head import new_head
from flowedge.training.recipe import BETAS, WEIGHT_DECAY, head_losses, with_noise
from testbed.models.corpus import Corpus, load_corpus
from testbed.models.packing import REPEATS, WeightedDocument, packed_batches, pair_tokens
from testbed.models.replicas import Replicas
from testbed.models.schedule import TimedSchedule
from testbed.models.train_tokenizer import ASSISTANT

PHASES = ((0.0, 12, 512), (0.3, 12, 512), (0.6, 12, 512), (0.85, 4, 1536))  # from this share on: rows, tokens
CORPUS_SHARE = 0.3  # how often a corpus pair comes in an epoch, beside each generated response once
MICRO_BATCHES = 4  # of a batch, for the threads to share
SAVE_EVERY_S = 120.0
REPORT_EVERY = 25  # steps


@dataclass(frozen=True)
class LossWeights:
    """Factors of the two losses; the published recipe has 1 and 0.1."""

    feature: float
    token: float


def training_documents(
    tokenizer: PreTrainedTokenizerBase, corpus: Corpus, responses: list[Path]
) -> list[WeightedDocument]:
    """The corpus's training pairs, and the target's own responses where there are any."""
    documents = [
        WeightedDocument(pair_tokens(tokenizer, pair), CORPUS_SHARE * REPEATS.get(pair.source, 1.0))
        for pair in corpus.training_pairs
    ]
    for path in responses:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    tokens = np.array(json.loads(line)["tokens"], dtype=np.uint16)
                    documents.append(WeightedDocument(tokens, 1.0))
    return documents


def response_mask(tokens: Tensor, assistant: int, eos: int) -> Tensor:
    """Which tokens [rows, length] the assistant wrote, its eos included; bool [rows, length]."""
    index = torch.arange(tokens.shape[1]).expand_as(tokens)
    opened = torch.where(tokens == assistant, index, -1).cummax(dim=1).values
    closed = torch.where(tokens == eos, index, -1).cummax(dim=1).values
    return ((opened > closed) | (tokens == eos)) & (tokens != assistant)


@torch.no_grad()
def target_features(target: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Hidden states after the final norm [rows, length, hidden], float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features: Tensor = target.model(input_ids=tokens, use_cache=False).last_hidden_state
    return features.float()


class HeadLoss:
    """The training loss of a head over token ids [rows, length], and a record of its parts."""

    def __init__(self, target: LlamaForCausalLM, markers: tuple[int, int], weights: LossWeights) -> None:
        """`markers` are the assistant's and the eos token id; only what lies between them counts."""
        self.target, self.markers, self.weights = target, markers, weights
        # smooth-L1, soft cross-entropy in nats, share of rows with the target's top token
        self.parts: list[tuple[float, float, float]] = []

    def __call__(self, head: EagleHead, tokens: Tensor) -> Tensor:
        features = target_features(self.target, tokens)
        given = with_noise(features[:, :-1], features.std())
        # Row t predicts feature[t+1], which decides token[t+2].
        counted = response_mask(tokens, *self.markers)
        rows = torch.cat([counted[:, 2:], torch.zeros_like(counted[:, :1])], dim=1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            predicted = head.forward_causal(self.target.model.embed_tokens(tokens[:, 1:]), given)
            predicted, wanted = predicted[rows].float(), features[:, 1:][rows]
            logits = self.target.lm_head(predicted).float()
            with torch.no_grad():
                wanted_logits = self.target.lm_head(wanted).float()
        losses = head_losses(predicted, wanted, logits, wanted_logits)
        agreement = (logits.argmax(-1) == wanted_logits.argmax(-1)).float().mean()
        self.parts.append((losses.feature.item(), losses.token.item(), agreement.item()))
        return losses.total(self.weights.token, self.weights.feature)


def train(
    head: EagleHead,
    loss: HeadLoss,
    replicas: Replicas[EagleHead],
    documents: Callable[[], list[WeightedDocument]],
    learning_rate: float,
    schedule: TimedSchedule,
    folder: Path,
) -> None:
    """Train until the schedule's time is used up, and print the means of the loss's parts on the way.

    `documents` is called at the start of every phase, so that responses may still be generated meanwhile.
    """
    optimizer = AdamW(head.parameters(), lr=learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY)
    batches: Iterator[Tensor] = iter(())
    phase: tuple[float, int, int] | None = None
    saved, step, tokens_seen = time.monotonic(), 0, 0
    while schedule.progress < 1.0:
        due = max(entry for entry in PHASES if entry[0] <= schedule.progress)
        if due != phase:
            phase = due
            batches = packed_batches(documents(), rows=due[1], length=due[2], seed=step)
        tokens = next(batches)
        micro_batches = list(tokens.chunk(MICRO_BATCHES))
        replicas.step(micro_batches, [optimizer], learning_rate * schedule.scale)
        step += 1
        tokens_seen += tokens.numel()
        if step % REPORT_EVERY == 0:
            feature, token, agreement = np.mean(loss.parts, axis=0)
            loss.parts.clear()
            print(
                f"step {step}  tokens {tokens_seen / 1e6:.2f}M  smooth-L1 {feature:.4f}"
                f"  cross-entropy {token:.3f}  agreement {agreement:.3f}  {schedule.elapsed_s / 60:.1f} min",
                flush=True,
            )
        if time.monotonic() - saved > SAVE_EVERY_S:
            save_eagle_head(head, folder)
            saved = time.monotonic()
    save_eagle_head(head, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of *.jsonl with prompt and response")
    parser.add_argument("--responses", type=Path, nargs="*", default=[], help="of generate_responses")
    parser.add_argument("--target", type=Path, required=True, help="folder of the target and its tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="folder for the head")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="peak")
    parser.add_argument("--feature-weight", type=float, default=1.0, help="of smooth-L1")
    parser.add_argument("--token-weight", type=float, default=0.4, help="of the soft cross-entropy")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.target)
    target = LlamaForCausalLM.from_pretrained(arguments.target, dtype=torch.float32)
    target.requires_grad_(False)
    corpus = load_corpus(arguments.data)
    head = new_head(target.config)
    save_eagle_head(head, arguments.out)
    markers = (tokenizer.encode(ASSISTANT, add_special_tokens=False)[0], tokenizer.eos_token_id)
    loss = HeadLoss(target, markers, LossWeights(arguments.feature_weight, arguments.token_weight))
    replicas = Replicas(head, arguments.threads, loss)
    schedule = TimedSchedule(arguments.minutes)

    def documents() -> list[WeightedDocument]:
        found = training_documents(tokenizer, corpus, arguments.responses)
        epoch = sum(len(document.tokens) * document.repeats for document in found)
        print(f"{len(found)} documents, {epoch:.0f} tokens an epoch", flush=True)
        return found

    train(head, loss, replicas, documents, arguments.learning_rate, schedule, arguments.out)


if __name__ == "__main__":
    main()
