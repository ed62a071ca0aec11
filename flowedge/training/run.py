"""A whole training: from a file of examples to a head that --drafter takes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from flowedge.core.errors import BadRequestError, DeadlineError, DeviceError
from flowedge.drafting.loading import TOKENIZER_FILES, drafter_directory
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.config_support import max_positions
from flowedge.models.layers.tensors import torch_dtype
from flowedge.training.data.documents import TrainingText, document_of, prompt_tokens
from flowedge.training.data.examples import Example, data_digest, read_examples, split_held_out
from flowedge.training.data.self_generation import self_generated
from flowedge.training.evaluation import NEW_TOKENS, STRATEGY, AcceptanceLength, evaluate
from flowedge.training.heads.kinds import head_taps, head_training
from flowedge.training.heads.recipe import default_learning_rate
from flowedge.training.settings import TrainingSettings
from flowedge.training.state import StateFolder, TrainingProgress
from flowedge.training.targets.local_target import open_local_target
from flowedge.training.targets.target import OpenTarget, TrainingTarget
from flowedge.training.trainer import Trainer

STATE_FOLDER = ".training"
REPORT_NAME = "training.json"
SAVE_EVERY_S = 120.0


class TrainingObserver(Protocol):
    """Who is told how a training goes."""

    def say(self, line: str) -> None: ...

    def advance(self, what: str, done: int, total: int) -> None:
        """Of answers that are generated, and prompts that are evaluated on."""

    def step(self, progress: TrainingProgress, share: float) -> None:
        """After each update; `share` of the training is done, 0 to 1."""

    def saved(self, step: int) -> None:
        """A checkpoint of `step` updates is on disk."""


def train_drafter(
    model: str,
    data: Path,
    out: Path,
    settings: TrainingSettings,
    watcher: TrainingObserver,
    *,
    open_target: OpenTarget = open_local_target,
    restart: bool = False,
) -> AcceptanceLength:
    """Trains a head, or goes on where the same call was interrupted, and evaluates it.

    `out` gets config.json and model.safetensors in the published layout, training.json with settings and
    results, and the checkpoints in .training. BadRequestError for data and settings that cannot be used or
    are not those that the training in `out` was begun with, CheckpointError for a model that cannot be read,
    and what `open_target` and its target raise; what was trained before a device was lost is kept.
    """
    _check_output(out, restart)
    if settings.init:
        drafter_directory(settings.init)
    training, held_out = split_held_out(read_examples(data), settings.evaluate)
    if not settings.self_generate and not any(example.has_answer for example in training):
        raise BadRequestError(
            f"{data}: no line to train on has an answer; give --self-generate N for the target's own"
        )
    checkpoint = Checkpoint.open(model)
    settings = _resolved(settings, checkpoint.config)
    taps = head_taps(settings.kind, checkpoint.config)
    identity = asdict(settings) | {"model": checkpoint.fingerprint, "data": data_digest(data)}
    if restart and (out / STATE_FOLDER).exists():
        shutil.rmtree(out / STATE_FOLDER)
    states = StateFolder(out / STATE_FOLDER, identity)
    with open_target(model, settings.quant, torch_dtype(settings.dtype), taps) as target:
        documents = _documents(target, training, settings, states.folder, watcher)
        head = head_training(target, documents, settings)
        trainer = Trainer(target, head, documents, settings)
        _train(trainer, states, watcher)
        head.save(out)
        prompts = [prompt_tokens(target.tokenizer, example) for example in held_out]
        acceptance = evaluate(
            target,
            out,
            [prompt for prompt in prompts if len(prompt) + NEW_TOKENS <= target.context],
            lambda done, total: watcher.advance("evaluating", done, total),
        )
    _write_report(out, model, identity, trainer.progress, acceptance)
    return acceptance


def _check_output(out: Path, restart: bool) -> None:
    """BadRequestError where a head would overwrite what this command did not begin."""
    if out.exists() and not out.is_dir():
        raise BadRequestError(f"--out {out}: not a directory")
    if any((out / name).exists() for name in TOKENIZER_FILES):
        raise BadRequestError(f"--out {out}: there is a tokenizer in it, as beside a language model")
    if not restart and (out / "config.json").exists() and not (out / STATE_FOLDER).exists():
        raise BadRequestError(f"--out {out}: there is a model in it; --restart replaces it")


def _resolved(settings: TrainingSettings, config: Any) -> TrainingSettings:
    """The settings with what the model's config decides filled in."""
    rate = settings.learning_rate or default_learning_rate(int(config.hidden_size))
    return replace(settings, learning_rate=rate, max_length=min(settings.max_length, max_positions(config)))


def _documents(
    target: TrainingTarget,
    examples: Sequence[Example],
    settings: TrainingSettings,
    folder: Path,
    watcher: TrainingObserver,
) -> list[TrainingText]:
    """What to train on: the examples with answers, and the target's own answers where they are asked for."""
    found = [document_of(target.tokenizer, example) for example in examples if example.has_answer]
    if settings.self_generate:
        found += self_generated(
            target,
            _prompts(target, examples, settings),
            max_new_tokens=settings.answer_tokens,
            seed=settings.seed,
            file=folder / "responses.jsonl",
            advance=lambda done, total: watcher.advance("answering", done, total),
        )
    cut = [document.cut(settings.max_length) for document in found]
    documents = [document for document in cut if document.is_useful]
    if not documents:
        raise BadRequestError(
            f"nothing to learn from is left of the examples within {settings.max_length} tokens"
        )
    shortened = sum(len(document) > settings.max_length for document in found)
    watcher.say(
        f"{len(documents)} texts of {sum(map(len, documents))} tokens; {shortened} were cut to "
        f"{settings.max_length} tokens, {len(found) - len(documents)} left out"
    )
    return documents


def _prompts(
    target: TrainingTarget, examples: Sequence[Example], settings: TrainingSettings
) -> list[list[int]]:
    """Different prompts that leave room for an answer, as many as are to be answered, drawn by the seed."""
    unique = list({example.key: example for example in examples}.values())
    prompts: list[list[int]] = []
    for index in np.random.default_rng(settings.seed).permutation(len(unique)).tolist():
        if len(prompts) == settings.self_generate:
            break
        prompt = prompt_tokens(target.tokenizer, unique[index])
        if len(prompt) < settings.max_length:
            prompts.append(prompt)
    return prompts


def _train(trainer: Trainer, states: StateFolder, watcher: TrainingObserver) -> None:
    """Trains to the end from the last checkpoint, and keeps new ones on the way."""
    saved = states.load()
    if saved is not None:
        trainer.restore(saved)
        watcher.say(f"going on from step {saved.progress.step}")
    else:
        states.save(trainer.saved())
    watcher.saved(trainer.progress.step)
    last = time.monotonic()
    try:
        for _ in trainer.steps():
            watcher.step(trainer.progress, trainer.share)
            if trainer.share >= 1 or time.monotonic() - last > SAVE_EVERY_S:
                states.save(trainer.saved())
                watcher.saved(trainer.progress.step)
                last = time.monotonic()
    except (DeviceError, DeadlineError):
        states.save(trainer.saved())  # of the last whole step: features are what fails
        watcher.saved(trainer.progress.step)
        raise


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
            "strategy": STRATEGY,
            "temperature": 0.0,
            "new_tokens": NEW_TOKENS,
        },
    }
    (out / REPORT_NAME).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
