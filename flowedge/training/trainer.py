"""The training loop, one update at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from itertools import tee

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.training.documents import Batch, TrainingText, Update, like_lengths, updates_from
from flowedge.training.heads.head_training import HeadTraining, LossSums
from flowedge.training.settings import TrainingSettings
from flowedge.training.state import TrainingProgress, TrainingState
from flowedge.training.target import TrainingTarget

BETAS = (0.9, 0.95)  # of AdamW, as published
WEIGHT_DECAY = 0.01
LARGEST_NORM = 1.0  # gradients of an update are clipped to it
SMOOTHING = 0.98  # the weight of the earlier value in the smoothed losses
_HEAD, _OPTIMIZER = "head.", "optimizer."
_MOMENTS = ("exp_avg", "exp_avg_sq")


class Trainer:
    """Trains a head on texts.

    With `steps`, two runs with the same settings and data are equal. With `minutes` they are not, because the
    learning rate follows the clock.
    """

    def __init__(
        self,
        target: TrainingTarget,
        training: HeadTraining,
        documents: Sequence[TrainingText],
        settings: TrainingSettings,
        deferred: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Train on `documents`, which are useful texts (see TrainingText) within the target's context.

        deferred: makes the context of an update's last part, in which no signal may interrupt the training.
        """
        self._deferred = deferred
        self._target = target
        self._documents = documents
        self._settings = settings
        self._training = training
        self.head = training.head
        self._peak = settings.learning_rate or default_learning_rate(target.lm_head.hidden_size)
        self._optimizer = AdamW(self.head.parameters(), lr=self._peak, betas=BETAS, weight_decay=WEIGHT_DECAY)
        self.progress = TrainingProgress()

    @property
    def share(self) -> float:
        """The finished share of the training, 0 to 1."""
        return self._settings.finished_share(self.progress.step, self.progress.spent_s)

    @property
    def seconds_left(self) -> float:
        """Seconds of training that are left, an estimate where updates are counted; inf before the first."""
        share = self.share
        return self.progress.spent_s * (1 - share) / share if share > 0 else math.inf

    def steps(self) -> Iterator[None]:
        """Train to the end, and yield after each update.

        The state may be saved then, and after an exception: it is the state after the last whole update.
        """
        settings, place = self._settings, (self.progress.epoch, self.progress.batch)
        lengths = [len(document) for document in self._documents]
        updates, ahead = tee(updates_from(lengths, settings.batch_tokens, settings.seed, *place))
        texts = (self._documents[index].tokens for update in ahead for index in update.documents)
        with closing(self._target.features(texts)) as features:
            while self.share < 1:
                update = next(updates)
                self._step(update, features)
                yield

    def state(self) -> TrainingState:
        """The state from which `restore` continues."""
        tensors = {_HEAD + name: value.detach() for name, value in self.head.state_dict().items()}
        for name, parameter in self.head.named_parameters():
            for key, value in self._optimizer.state[parameter].items():
                tensors[f"{_OPTIMIZER}{name}/{key}"] = value
        return TrainingState(self.progress, tensors)

    def restore(self, state: TrainingState) -> None:
        weights = {
            name[len(_HEAD) :]: value for name, value in state.tensors.items() if name.startswith(_HEAD)
        }
        try:
            self.head.load_state_dict(weights)
            # Before the first update AdamW has no state.
            for name, parameter in self.head.named_parameters() if state.progress.step else ():
                moments = {key: state.tensors[f"{_OPTIMIZER}{name}/{key}"] for key in ("step", *_MOMENTS)}
                # AdamW keeps the step on the CPU.
                self._optimizer.state[parameter] = moments | {
                    key: moments[key].to(parameter.device) for key in _MOMENTS
                }
        except (RuntimeError, KeyError) as error:
            raise CheckpointError(
                f"the training's checkpoint does not fit the head ({error}); --restart starts over"
            ) from error
        self.progress = state.progress

    def _step(self, update: Update, features: Iterator[Tensor]) -> None:
        """Update the weights; `features` yields the rows of the update's texts next."""
        started = time.monotonic()
        batch = [self._documents[index] for index in update.documents]
        # Seeded by the step, so that the generator has no state to save.
        noise = torch.Generator(self._target.device).manual_seed(
            (self._settings.seed << 32) + self.progress.step
        )
        rows = sum(int(document.rows.sum()) for document in batch)
        sums = LossSums()
        given = [next(features) for _ in batch]
        for alike in like_lengths([len(document) for document in batch]):
            texts = Batch.of(
                [batch[index] for index in alike],
                [given[index] for index in alike],
                self._target.lm_head.hidden_size,
            )
            self._training.backward(texts, rows, noise, sums)
        clip_grad_norm_(self.head.parameters(), LARGEST_NORM)
        if not math.isfinite(sums.feature + sums.token):
            raise BadRequestError(
                f"the loss is not finite after {self.progress.step} steps: "
                "give a lower --lr, and --restart to start over"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = self._peak * learning_rate_scale(self.share)
        with self._deferred():
            self._optimizer.step()
            self._optimizer.zero_grad()
            progress = _advanced(self.progress, sums, sum(map(len, batch)), time.monotonic() - started)
            self.progress = (
                replace(progress, epoch=progress.epoch + 1, batch=0) if update.is_last else progress
            )


def learning_rate_scale(progress: float, warmup: float = 0.02) -> float:
    """The factor on the peak learning rate at a progress from 0 to 1: linear warm-up, then linear decay."""
    if progress < warmup:
        return max(progress / warmup, 0.05)
    return max((1 - progress) / (1 - warmup), 0.01)


def default_learning_rate(hidden_size: int) -> float:
    """A peak that falls with the width: 1e-3 up to 256, the published 3e-5 from 8192 on."""
    return min(1e-3, max(3e-5, 0.256 / hidden_size))


def _advanced(progress: TrainingProgress, sums: LossSums, tokens: int, seconds: float) -> TrainingProgress:
    weight = SMOOTHING if progress.step else 0.0

    def smooth(old: float, total: float) -> float:
        return weight * old + (1 - weight) * (total / (sums.share or 1.0))

    return replace(
        progress,
        step=progress.step + 1,
        batch=progress.batch + 1,
        spent_s=progress.spent_s + seconds,
        tokens=progress.tokens + tokens,
        feature_loss=smooth(progress.feature_loss, sums.feature),
        token_loss=smooth(progress.token_loss, sums.token),
        agreement=smooth(progress.agreement, sums.agreed),
    )
