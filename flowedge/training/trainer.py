"""The training loop: one update at a time, from one checkpoint to the next."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import tee

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from flowedge.drafting.eagle_head import EagleHead
from flowedge.errors import BadRequestError, CheckpointError
from flowedge.training.documents import Document, updates_from
from flowedge.training.new_head import new_head
from flowedge.training.recipe import (
    BETAS,
    WEIGHT_DECAY,
    default_learning_rate,
    head_losses,
    learning_rate_scale,
    with_noise,
)
from flowedge.training.settings import TrainingSettings
from flowedge.training.state import Progress, Saved
from flowedge.training.target import TrainingTarget

LOGIT_ROWS = 256  # rows whose logits over the vocabulary are held at once
LARGEST_NORM = 1.0  # of an update's gradients
SMOOTHING = 0.98  # of the losses that are shown
_HEAD, _OPTIMIZER = "head.", "optimizer."
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class StepReport:
    """One update: the means over its counted rows.

    Attributes:
        token_loss: soft cross-entropy in nats; agreement: share of rows with the target's likeliest token.
    """

    feature_loss: float
    token_loss: float
    agreement: float


@dataclass
class _Sums:
    """Over the rows of a batch."""

    feature: float = 0.0
    token: float = 0.0
    agreed: float = 0.0


class Trainer:
    """Trains a head on documents; what it does depends on the settings, the data and the step alone.

    With `minutes` the learning rate follows the clock, and only with `steps` are two runs equal.
    """

    def __init__(
        self, target: TrainingTarget, documents: Sequence[Document], settings: TrainingSettings
    ) -> None:
        """`documents` have counted rows, all of them, and lie within the target's context."""
        self._target = target
        self._documents = documents
        self._settings = settings
        generator = torch.Generator().manual_seed(settings.seed)
        self.head: EagleHead = new_head(target.checkpoint.config, generator).train().to(target.device)
        self._peak = settings.learning_rate or default_learning_rate(target.lm_head.hidden_size)
        self._optimizer = AdamW(self.head.parameters(), lr=self._peak, betas=BETAS, weight_decay=WEIGHT_DECAY)
        self.progress = Progress()

    @property
    def share(self) -> float:
        """How much of the training is done, 0 to 1."""
        if self._settings.steps is not None:
            return min(1.0, self.progress.step / self._settings.steps)
        assert self._settings.minutes is not None
        return min(1.0, self.progress.spent_s / (60 * self._settings.minutes))

    def steps(self) -> Iterator[StepReport]:
        """Trains to the end; the trainer may be saved whenever it has yielded."""
        settings, place = self._settings, (self.progress.epoch, self.progress.batch)
        lengths = [len(document) for document in self._documents]
        updates, ahead = tee(updates_from(lengths, settings.batch_tokens, settings.seed, *place))
        texts = (self._documents[index].tokens for update in ahead for index in update.documents)
        with closing(self._target.features(texts)) as features:
            while self.share < 1:
                update = next(updates)
                report = self._step([self._documents[index] for index in update.documents], features)
                if update.is_last:
                    self.progress = replace(self.progress, epoch=self.progress.epoch + 1, batch=0)
                yield report

    def saved(self) -> Saved:
        """The state from which `restore` goes on."""
        tensors = {_HEAD + name: value.detach() for name, value in self.head.state_dict().items()}
        for name, parameter in self.head.named_parameters():
            for key, value in self._optimizer.state[parameter].items():
                tensors[f"{_OPTIMIZER}{name}/{key}"] = value
        return Saved(self.progress, tensors)

    def restore(self, saved: Saved) -> None:
        """Goes on from a state; CheckpointError when it is not one of this head."""
        weights = {
            name[len(_HEAD) :]: value for name, value in saved.tensors.items() if name.startswith(_HEAD)
        }
        try:
            self.head.load_state_dict(weights)
            # Before the first update there is nothing that AdamW remembers.
            for name, parameter in self.head.named_parameters() if saved.progress.step else ():
                state = {key: saved.tensors[f"{_OPTIMIZER}{name}/{key}"] for key in ("step", *_MOMENTS)}
                # AdamW keeps the step on the CPU.
                self._optimizer.state[parameter] = state | {
                    key: state[key].to(parameter.device) for key in _MOMENTS
                }
        except (RuntimeError, KeyError) as error:
            raise CheckpointError(
                f"the training's checkpoint does not fit the head ({error}); --restart begins anew"
            ) from error
        self.progress = saved.progress

    def _step(self, batch: Sequence[Document], features: Iterator[Tensor]) -> StepReport:
        """`features` gives those of the batch's documents next."""
        started = time.monotonic()
        # Keyed by the step, so that there is no state of it to keep.
        noise = torch.Generator(self._target.device).manual_seed(
            (self._settings.seed << 32) + self.progress.step
        )
        rows = sum(int(document.rows.sum()) for document in batch)
        sums = _Sums()
        for document in batch:
            self._backward(document, next(features), rows, noise, sums)
        clip_grad_norm_(self.head.parameters(), LARGEST_NORM)
        if not math.isfinite(sums.feature + sums.token):
            raise BadRequestError(
                f"the loss is not finite after {self.progress.step} steps: "
                "give a lower --lr, and --restart to begin anew"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = self._peak * learning_rate_scale(self.share)
        self._optimizer.step()
        self._optimizer.zero_grad()
        report = StepReport(sums.feature, sums.token, sums.agreed)
        self.progress = _advanced(self.progress, report, sum(map(len, batch)), time.monotonic() - started)
        return report

    def _backward(
        self,
        document: Document,
        features: Tensor,
        batch_rows: int,
        noise: torch.Generator,
        sums: _Sums,
    ) -> None:
        """Adds the gradients and the losses of one document, each row weighing 1 / batch_rows."""
        given = with_noise(features[:-1], features.std(), noise)
        embedded = self._target.embed(document.tokens[1:])
        rows = torch.from_numpy(document.rows).to(features.device)
        predicted = self.head.forward_causal(embedded[None], given[None])[0][rows]
        wanted = features[1:][rows]
        # Backwards in two parts, so that few rows have their logits in memory.
        leaf = predicted.detach().requires_grad_()
        for start in range(0, len(leaf), LOGIT_ROWS):
            piece = slice(start, start + LOGIT_ROWS)
            self._backward_logits(leaf[piece], wanted[piece], batch_rows, sums)
        predicted.backward(leaf.grad)  # type: ignore[no-untyped-call]

    def _backward_logits(self, predicted: Tensor, wanted: Tensor, batch_rows: int, sums: _Sums) -> None:
        logits = self._target.lm_head.differentiable_logits(predicted)
        with torch.no_grad():
            wanted_logits = self._target.lm_head.differentiable_logits(wanted)
        weight = len(predicted) / batch_rows
        losses = head_losses(predicted, wanted, logits, wanted_logits)
        torch.autograd.backward(weight * losses.total(self._settings.cross_entropy_weight))
        agreement = (logits.argmax(-1) == wanted_logits.argmax(-1)).float().mean()
        sums.feature += weight * losses.feature.item()
        sums.token += weight * losses.token.item()
        sums.agreed += weight * agreement.item()


def _advanced(progress: Progress, report: StepReport, tokens: int, seconds: float) -> Progress:
    kept = SMOOTHING if progress.step else 0.0

    def smooth(old: float, new: float) -> float:
        return kept * old + (1 - kept) * new

    return replace(
        progress,
        step=progress.step + 1,
        batch=progress.batch + 1,
        spent_s=progress.spent_s + seconds,
        tokens=progress.tokens + tokens,
        feature_loss=smooth(progress.feature_loss, report.feature_loss),
        token_loss=smooth(progress.token_loss, report.token_loss),
        agreement=smooth(progress.agreement, report.agreement),
    )
