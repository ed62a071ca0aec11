"""Train the target.

Run: python -m testbed.tools.models.train_target --data DIR --tokenizer DIR --out DIR
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from testbed.tools.models.generate_responses import prompt_batches
from testbed.tools.models.loops import LoopTraining, OwnAnswers, unlikelihood
from testbed.tools.models.packing import WeightedDocument, corpus_documents, packed_batches, pair_tokens
from testbed.tools.models.replicas import Replicas
from testbed.tools.models.schedule import TimedSchedule, add_training_options
from testbed.tools.models.texts.corpus import Corpus, load_corpus
from testbed.tools.models.train_tokenizer import load_with_template

Phases = tuple[tuple[float, int, int], ...]  # from this share of the budget on: rows, tokens a row

PHASES: Phases = ((0.0, 16, 256), (0.5, 8, 512), (0.8, 4, 1536))
FURTHER_PHASES: Phases = ((0.0, 8, 512), (0.8, 4, 1536))  # of a training that goes on from a trained target
MICRO_BATCHES = 4  # of a batch, for the threads to share
CHECKPOINT_EVERY_S = 240.0
REPORT_EVERY = 10  # steps


@dataclass
class ResumeState:
    """The state of a run, beside the weights and the optimizers' state, that is needed to resume it."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0


def new_target(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Return a Llama of about 8.9 million parameters with fresh weights."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def mix_in(model: LlamaForCausalLM, other: Path, share: float) -> None:
    """Make each weight the mean of its own and another target's, which has this share (Wortsman et al. 2022).

    What was trained from a target knows more of what that had learned when it is mixed with it.
    """
    others = dict(LlamaForCausalLM.from_pretrained(other, dtype=torch.float32).named_parameters())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.lerp_(others[name], share)


def new_optimizers(model: LlamaForCausalLM, learning_rate: float, muon: bool) -> list[Optimizer]:
    """Return AdamW for everything, or a Muon for each layer's matrices and AdamW for the rest."""
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    embeddings = [model.model.embed_tokens.weight]
    norms = [weight for weight in model.parameters() if weight.ndim == 1]
    groups = [
        {"params": embeddings if muon else matrices + embeddings, "weight_decay": 0.05},
        {"params": norms, "weight_decay": 0.0},
    ]
    optimizers: list[Optimizer] = [AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))]
    if muon:
        for layer in model.model.layers:
            matrices = [weight for weight in layer.parameters() if weight.ndim == 2]
            optimizers.append(
                Muon(matrices, lr=learning_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
            )
    return optimizers


@dataclass(frozen=True)
class TargetLoss:
    """The loss of a batch: the mean next-token cross-entropy in nats, or that on loops of own answers.

    Attributes:
        autocast: whether products are computed in bfloat16.
    """

    autocast: bool

    def __call__(self, model: LlamaForCausalLM, batch: Tensor) -> Tensor:
        """Return the loss of token ids [rows, length], or of a batch of OwnAnswers."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            if batch.ndim == 3:
                return unlikelihood(model, batch)
            loss: Tensor = model(input_ids=batch, labels=batch, use_cache=False).loss
            return loss


def save_checkpoint(
    folder: Path, model: LlamaForCausalLM, optimizers: list[Optimizer], progress: ResumeState
) -> None:
    """Write the model as transformers does, and the state to resume from. An interruption loses neither."""
    model.save_pretrained(folder / "model")
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "progress": vars(progress),
    }
    torch.save(state, folder / "state.part")
    (folder / "state.part").replace(folder / "state.pt")


def load_checkpoint(folder: Path, model: LlamaForCausalLM, optimizers: list[Optimizer]) -> ResumeState:
    """Restore the state that `save_checkpoint` wrote."""
    state = torch.load(folder / "state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return ResumeState(**state["progress"])


def train(
    replicas: Replicas[LlamaForCausalLM],
    optimizers: list[Optimizer],
    documents: list[WeightedDocument],
    folder: Path,
    schedule: TimedSchedule,
    learning_rate: float,
    progress: ResumeState,
    phases: Phases = PHASES,
    own: OwnAnswers | None = None,
) -> None:
    """Train until the schedule's time is used up, with the rows of the phases, and against loops in `own`."""
    phase: tuple[float, int, int] | None = None
    batches: Iterator[Tensor] = iter(())
    losses: list[float] = []
    saved = reported = time.monotonic()
    reported_tokens = progress.tokens
    while schedule.progress < 1.0:
        due = max(entry for entry in phases if entry[0] <= schedule.progress)
        if due != phase:
            phase = due
            batches = packed_batches(documents, rows=due[1], length=due[2], seed=progress.step)
        tokens = next(batches)
        micro_batches = list(tokens.chunk(MICRO_BATCHES))
        if own is not None and progress.step % own.settings.every == 0:
            own.renew()
            print(f"step {progress.step}  {own.share:.0%} of its answers loop", flush=True)
        against = own.batch() if own is not None else []
        losses.append(replicas.step(micro_batches, optimizers, learning_rate * schedule.scale, against))
        progress.step += 1
        progress.tokens += tokens.numel()
        now = time.monotonic()
        if progress.step % REPORT_EVERY == 0:
            rate = (progress.tokens - reported_tokens) / (now - reported)
            mean = sum(losses) / len(losses)
            print(
                f"step {progress.step}  tokens {progress.tokens / 1e6:.2f}M  loss {mean:.3f}"
                f"  {rate:.0f} tokens/s  {schedule.elapsed_s / 60:.1f} min",
                flush=True,
            )
            losses, reported, reported_tokens = [], now, progress.tokens
        if now - saved > CHECKPOINT_EVERY_S:
            progress.elapsed_s = schedule.elapsed_s
            save_checkpoint(folder, replicas.module, optimizers, progress)
            saved = now
    progress.elapsed_s = schedule.elapsed_s
    save_checkpoint(folder, replicas.module, optimizers, progress)


def asked_prompts(
    tokenizer: PreTrainedTokenizerBase, corpus: Corpus, rows: int, seed: int
) -> Iterator[list[list[int]]]:
    """Yield batches of prompts as tokens, without end, drawn with the weights of training."""
    for batch in prompt_batches(tokenizer, corpus.training_pairs, rows, seed):
        yield [prompt.tokens for prompt in batch]


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, documents: list[Tensor]) -> float:
    """Return the mean next-token cross-entropy over held-out conversations [length], in nats and fp32."""
    total, count = 0.0, 0
    for tokens in documents:
        loss = model(input_ids=tokens[None], labels=tokens[None], use_cache=False).loss
        total += loss.item() * (len(tokens) - 1)
        count += len(tokens) - 1
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_training_options(parser, minutes=65.0, learning_rate=1.5e-3, threads=2)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of train_tokenizer")
    parser.add_argument(
        "--optimizer",
        choices=["muon", "adamw"],
        default="muon",
        help="muon's own products are in bfloat16, which take minutes a step without AVX-512",
    )
    parser.add_argument(
        "--against-loops", type=float, default=0.0, help="weight of the loss on loops of its own answers"
    )
    parser.add_argument(
        "--mixed", nargs=2, metavar=("DIR", "SHARE"), help="begin with the mean of --init and this target"
    )
    arguments = parser.parse_args()
    if arguments.mixed is not None and arguments.init is None:
        parser.error("--mixed is a mean with the target of --init; give that as well")

    torch.manual_seed(arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = load_with_template(arguments.tokenizer)
    corpus = load_corpus(arguments.data)
    documents = corpus_documents(tokenizer, corpus)
    model = (
        new_target(tokenizer)
        if arguments.init is None
        else LlamaForCausalLM.from_pretrained(arguments.init, dtype=torch.float32)
    )
    if arguments.mixed is not None:
        mix_in(model, Path(arguments.mixed[0]), float(arguments.mixed[1]))
    optimizers = new_optimizers(model, arguments.learning_rate, arguments.optimizer == "muon")
    progress = load_checkpoint(arguments.out, model, optimizers) if arguments.resume else ResumeState()
    epoch = sum(len(document.tokens) * document.repeats for document in documents)
    print(f"{model.num_parameters()} parameters, {epoch:.0f} tokens an epoch")
    schedule = TimedSchedule(arguments.minutes, progress.elapsed_s)
    replicas = Replicas(model, arguments.threads, TargetLoss(arguments.dtype == "bfloat16"))
    own = None
    if arguments.against_loops:
        settings = LoopTraining(arguments.against_loops)
        prompts = asked_prompts(tokenizer, corpus, settings.prompts // arguments.threads, arguments.seed)
        own = OwnAnswers(replicas, prompts, settings)
    phases = PHASES if arguments.init is None else FURTHER_PHASES
    train(
        replicas,
        optimizers,
        documents,
        arguments.out,
        schedule,
        arguments.learning_rate,
        progress,
        phases,
        own,
    )
    held_out = [pair_tokens(tokenizer, pair)[:2048].astype("int64") for pair in corpus.held_out_pairs]
    loss = held_out_loss(model.train(False), [torch.from_numpy(tokens) for tokens in held_out])
    print(f"held-out loss {loss:.3f} nats a token after {progress.tokens} tokens")


if __name__ == "__main__":
    main()
