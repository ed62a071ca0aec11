"""A whole training, from a file of examples to a head for --drafter."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from flowedge.core.errors import BadRequestError, DeadlineError, DeviceError
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.choice import NGRAM, TOKENIZER_FILES
from flowedge.drafting.heads.head_files import SAFETENSORS_NAME
from flowedge.drafting.heads.head_settings import CONFIG_NAME
from flowedge.drafting.loading import drafter_directory
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.files.config_support import max_positions
from flowedge.models.host.payloads import torch_dtype
from flowedge.training.documents import TrainingText, document_of, prompt_tokens
from flowedge.training.examples import Example, data_digest, read_examples, split_held_out
from flowedge.training.heads.head_kinds import head_taps, head_training
from flowedge.training.local_target import open_local_target
from flowedge.training.self_generation import self_generated
from flowedge.training.settings import TrainingSettings
from flowedge.training.state import StateFolder, TrainingProgress, clear, only_training
from flowedge.training.target import OpenTarget, Question, TrainingTarget
from flowedge.training.trainer import Trainer, default_learning_rate

STATE_FOLDER = ".training"
REPORT_NAME = "training.json"
HEAD_FILES = (CONFIG_NAME, SAFETENSORS_NAME)
SAVE_EVERY_S = 120.0
NEW_TOKENS = 64  # the most tokens of each evaluated answer
STRATEGY = "naive_pp"  # of the evaluation
EVALUATION_SHARE = 0.1  # of the minutes of a training, for the head and for lookup each
USEFUL_TOKENS = 10_000_000  # that the bundled model's head was trained on (flowedge/bundled/MODEL_CARD.md)
LEAST_LENGTH = 1.1  # acceptance length of a head that has learned anything: 1 is one that is never right


@dataclass(frozen=True)
class AcceptanceLength:
    """The tokens of the answers to some prompts, and the draft-verify cycles they took.

    Attributes:
        lookup: the acceptance length of lookup in the text (ngram) on these prompts; 0 if not measured.
        accepted_at: of each depth of the tree, the cycles that accepted a draft token there.
    """

    prompts: int
    tokens: int
    cycles: int
    lookup: float = 0.0
    accepted_at: tuple[int, ...] = ()

    @property
    def length(self) -> float:
        """The mean tokens of a cycle, accepted and bonus tokens; 0 without cycles."""
        return self.tokens / self.cycles if self.cycles else 0.0

    @property
    def by_depth(self) -> list[float]:
        """The shares of the cycles that accepted a draft token of each depth; with 1 they are the length."""
        return [count / self.cycles for count in self.accepted_at]

    @property
    def is_of_use(self) -> bool:
        """Whether the head drafts better than what needs no training."""
        return self.length > max(LEAST_LENGTH, self.lookup)


class TrainingObserver(Protocol):
    """Receives the progress of a training."""

    def say(self, line: str) -> None: ...

    def advance(self, what: str, done: int, total: int) -> None:
        """Called for each generated answer and each evaluated prompt."""

    def step(self, progress: TrainingProgress, share: float) -> None:
        """Called after each update; `share` of the training, 0 to 1, is finished."""

    def saved(self, step: int) -> None:
        """Called when the checkpoint of `step` updates is on disk."""


def train_drafter(
    model: str,
    data: Path,
    out: Path,
    settings: TrainingSettings,
    observer: TrainingObserver,
    *,
    open_target: OpenTarget = open_local_target,
    restart: bool = False,
    deferred: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> AcceptanceLength:
    """Train a head, or continue an interrupted training, and evaluate it.

    The folder `out` gets config.json and model.safetensors in the published layout, training.json with
    settings and results, and checkpoints in .training. Of a training that is finished and evaluated, the
    result is read from there. After a KeyboardInterrupt the checkpoint of the last whole update is saved.

    Args:
        restart: whether to replace the training in `out`.
        deferred: makes a context that no KeyboardInterrupt may leave halfway.

    Raises:
        BadRequestError: when data or settings cannot be used, or differ from those of the training in `out`,
            or another process is training there.
        CheckpointError: when the model cannot be read.
        DeviceError: when a device of the target is lost; the training so far is saved.
    """
    _check_output(out, restart)
    if settings.init:
        drafter_directory(settings.init)
    training, held_out = split_held_out(read_examples(data), settings.evaluate)
    if not settings.self_generate and not any(example.has_answer for example in training):
        raise BadRequestError(
            f"{data}: no line to train on has an answer; give --self-generate N for answers of the target"
        )
    checkpoint = Checkpoint.open(model)
    settings = _resolved(settings, checkpoint.config)
    taps = head_taps(settings.kind, checkpoint.config)
    identity = asdict(settings) | {"model": checkpoint.fingerprint, "data": data_digest(data)}
    with only_training(out / STATE_FOLDER):
        if restart:
            clear(out / STATE_FOLDER)
        states = StateFolder(out / STATE_FOLDER, identity)
        known = _known_result(out, states, settings)
        if known is not None:
            observer.say(_finished_text(out, states.progress(), settings))
            return known
        observer.say(f"loading {model}")
        with open_target(model, settings.quant, torch_dtype(settings.dtype), taps) as target:
            documents = _documents(target, training, settings, states.folder, observer)
            head = head_training(target, documents, settings)
            trainer = Trainer(target, head, documents, settings, deferred)
            observer.say(_need_text(trainer, documents))
            _train(trainer, states, observer)
            head.save(out)
            prompts = [prompt_tokens(target.tokenizer, example) for example in held_out]
            acceptance = _evaluate(target, out, prompts, settings, observer)
        _write_report(out, model, identity, trainer.progress, acceptance)
        return acceptance


def _check_output(out: Path, restart: bool) -> None:
    """Check that the head overwrites no other model."""
    if out.exists() and not out.is_dir():
        raise BadRequestError(f"--out {out}: not a directory")
    if any((out / name).exists() for name in TOKENIZER_FILES):
        raise BadRequestError(f"--out {out}: the directory has a tokenizer, as beside a language model")
    if not restart and (out / "config.json").exists() and not (out / STATE_FOLDER).exists():
        raise BadRequestError(f"--out {out}: the directory has a model; --restart replaces it")


def _resolved(settings: TrainingSettings, config: Any) -> TrainingSettings:
    """The settings with the values that depend on the model's config, or on the kind."""
    rate = settings.learning_rate or default_learning_rate(int(config.hidden_size))
    length = min(settings.max_length, max_positions(config))
    return replace(settings, learning_rate=rate, max_length=length, unroll=settings.steps_of_a_row)


def _documents(
    target: TrainingTarget,
    examples: Sequence[Example],
    settings: TrainingSettings,
    folder: Path,
    observer: TrainingObserver,
) -> list[TrainingText]:
    """The texts to train on: the examples with answers, and the target's own answers."""
    found = [document_of(target.tokenizer, example) for example in examples if example.has_answer]
    if settings.self_generate:
        found += self_generated(
            target,
            _prompts(target, examples, settings),
            max_new_tokens=settings.answer_tokens,
            seed=settings.seed,
            file=folder / "responses.jsonl",
            advance=lambda done, total: observer.advance("answering", done, total),
        )
    cut = [document.cut(settings.max_length) for document in found]
    documents = [document for document in cut if document.is_useful]
    if not documents:
        raise BadRequestError(
            f"no example has anything to learn from within its first {settings.max_length} tokens; "
            "give a larger --max-length or other examples"
        )
    shortened = sum(len(document) > settings.max_length for document in found)
    observer.say(
        f"{len(documents)} texts of {sum(map(len, documents))} tokens; {shortened} were cut to "
        f"{settings.max_length} tokens, {len(found) - len(documents)} left out"
    )
    return documents


def _prompts(
    target: TrainingTarget, examples: Sequence[Example], settings: TrainingSettings
) -> list[list[int]]:
    """The prompts for the target to answer: different ones with room for an answer, drawn by the seed."""
    unique = list({example.key: example for example in examples}.values())
    prompts: list[list[int]] = []
    for index in np.random.default_rng(settings.seed).permutation(len(unique)).tolist():
        if len(prompts) == settings.self_generate:
            break
        prompt = prompt_tokens(target.tokenizer, unique[index])
        if len(prompt) < settings.max_length:
            prompts.append(prompt)
    return prompts


def _train(trainer: Trainer, states: StateFolder, observer: TrainingObserver) -> None:
    """Train from the last checkpoint to the end, and save checkpoints meanwhile."""

    def save() -> None:
        states.save(trainer.state())
        observer.saved(trainer.progress.step)

    saved = states.load()
    if saved is not None:
        trainer.restore(saved)
        observer.say(f"going on from step {saved.progress.step}")
        observer.saved(trainer.progress.step)
    else:
        save()
    last, before = time.monotonic(), trainer.progress
    try:
        for number, _ in enumerate(trainer.steps()):
            if number == 0:
                observer.say(_speed_text(before, trainer))
            observer.step(trainer.progress, trainer.share)
            if trainer.share >= 1 or time.monotonic() - last > SAVE_EVERY_S:
                save()
                last = time.monotonic()
    except (KeyboardInterrupt, DeviceError, DeadlineError):
        save()  # the state after the last whole update
        raise


def _need_text(trainer: Trainer, documents: Sequence[TrainingText]) -> str:
    """Return what a useful head takes, before the time is spent."""
    weights = sum(parameter.numel() for parameter in trainer.head.parameters() if parameter.requires_grad)
    return (
        f"the head has {weights / 1e6:.1f} million weights. A useful one needs texts as the model writes "
        f"them, and about {USEFUL_TOKENS / 1e6:.0f} million tokens of training (so the bundled model's; "
        "published heads of 7B models saw some 60,000 dialogues several times); these texts have "
        f"{sum(map(len, documents)) / 1e6:.2f} million"
    )


def _speed_text(before: TrainingProgress, trainer: Trainer) -> str:
    """Return how long the training takes, after the first update."""
    now = trainer.progress
    seconds, tokens = max(now.spent_s - before.spent_s, 1e-9), now.tokens - before.tokens
    hours = max(USEFUL_TOKENS - before.tokens, 0) * seconds / max(tokens, 1) / 3600
    left = trainer.seconds_left
    return (
        f"an update of {tokens} tokens takes {seconds:.1f} s: about {left / seconds:.0f} more of them in "
        f"this training, and {USEFUL_TOKENS / 1e6:.0f} million tokens would take {hours:.1f} hours here"
    )


def _evaluate(
    target: TrainingTarget,
    head: Path,
    prompts: Sequence[list[int]],
    settings: TrainingSettings,
    observer: TrainingObserver,
) -> AcceptanceLength:
    """Measure the acceptance of a saved head at temperature 0, and of lookup, on prompts that leave room.

    A training by minutes has a share of them in addition for each of the two; a prompt that is begun is
    finished.
    """
    fitting = [prompt for prompt in prompts if len(prompt) + NEW_TOKENS <= target.context]
    limit_s = math.inf if settings.minutes is None else 60 * settings.minutes * EVALUATION_SHARE
    if fitting and settings.minutes is not None:
        observer.say(f"evaluating for up to {2 * limit_s:.0f} s, and a prompt each, beyond the training")
    found = _decoded(target, str(head), fitting, limit_s, observer)
    if not found.prompts or target.taps:  # a pipeline with taps runs with no other drafter
        return found
    lookup = _decoded(target, NGRAM, fitting[: found.prompts], limit_s, observer)
    return replace(found, lookup=lookup.length)


def _decoded(
    target: TrainingTarget,
    drafter: str,
    prompts: Sequence[list[int]],
    limit_s: float,
    observer: TrainingObserver,
) -> AcceptanceLength:
    """Answer prompts with a drafter for up to `limit_s` seconds."""
    questions = [Question(prompt, SamplingParams(), NEW_TOKENS) for prompt in prompts]
    what = "evaluating" if drafter != NGRAM else "evaluating lookup"
    began, done = time.monotonic(), 0
    rounds: list[int] = []  # the tokens of each cycle, of which the last is no draft token
    for counters in target.decode(drafter, questions, STRATEGY):
        rounds += counters.accepted_per_round
        done += 1
        observer.advance(what, done, len(prompts))
        if time.monotonic() - began > limit_s:
            break
    accepted_at = tuple(
        sum(tokens > depth for tokens in rounds) for depth in range(1, max(rounds, default=1))
    )
    return AcceptanceLength(done, sum(rounds), len(rounds), accepted_at=accepted_at)


def _known_result(out: Path, states: StateFolder, settings: TrainingSettings) -> AcceptanceLength | None:
    """Return the evaluation of a training that is finished; None if it goes on or was not evaluated."""
    progress = states.progress()
    if progress is None or settings.finished_share(progress.step, progress.spent_s) < 1:
        return None
    if not all((out / name).is_file() for name in HEAD_FILES):
        return None
    try:
        report = json.loads((out / REPORT_NAME).read_text(encoding="utf-8"))
        if report["training"] != asdict(progress):  # of an earlier, shorter training
            return None
        found = report["evaluation"]
        prompts, tokens, cycles = (int(found[name]) for name in ("prompts", "tokens", "cycles"))
        accepted_at = tuple(map(int, found.get("accepted_at", ())))
        return AcceptanceLength(prompts, tokens, cycles, float(found.get("lookup", 0.0)), accepted_at)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _finished_text(out: Path, progress: TrainingProgress | None, settings: TrainingSettings) -> str:
    assert progress is not None
    longer = (
        f"More --minutes than {settings.minutes:g} continue it"
        if settings.minutes is not None
        else f"Its --steps cannot be raised; --init {out} with another --out goes on from its head"
    )
    return (
        f"the training in {out} was finished and evaluated before: {progress.step} steps in "
        f"{progress.spent_s / 60:.1f} minutes, CE {progress.token_loss:.2f}, "
        f"agreed {progress.agreement:.2f}. {longer}; --restart starts over"
    )


def _write_report(
    out: Path, model: str, identity: dict[str, Any], progress: TrainingProgress, acceptance: AcceptanceLength
) -> None:
    report = {
        "model": model,
        "model_fingerprint": identity["model"],
        "data_sha256": identity["data"],
        "settings": {name: value for name, value in identity.items() if name not in ("model", "data")},
        "training": asdict(progress),
        "evaluation": {
            "acceptance_length": round(acceptance.length, 4),
            **asdict(acceptance),
            "accepted_by_depth": [round(share, 4) for share in acceptance.by_depth],
            "strategy": STRATEGY,
            "temperature": 0.0,
            "new_tokens": NEW_TOKENS,
        },
    }
    (out / REPORT_NAME).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
