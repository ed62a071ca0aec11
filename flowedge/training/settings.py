"""The settings of a training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flowedge.core.errors import BadRequestError

CROSS_ENTROPY_WEIGHT = 0.1  # as published; the feature loss has the weight 1
DRAFT_VOCAB = 32000  # the draft vocabulary of published EAGLE-3 heads
UNROLLED = {"eagle3": 7}  # steps of a kind on its own output, as published; of the others one
BLOCK_SIZE = 16  # as published, of DFlash and JetSpec
HEAD_LAYERS = 5  # as published

HeadKind = Literal["eagle", "eagle3", "dflash", "jetspec", "dspark"]


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of a training, which can be continued only with the settings that it began with.

    `minutes` may be raised.

    Either minutes or steps is set.

    Raises:
        BadRequestError: when a value is out of range.
    """

    kind: HeadKind = "eagle"
    init: str = ""  # directory of the initial head; a random head if empty
    minutes: float | None = None  # of training, with those of earlier runs and without loading
    steps: int | None = None  # updates of the weights
    batch_tokens: int = 2048  # tokens of one update
    max_length: int = 2048  # tokens that a text is cut to; the model's context bounds it as well
    learning_rate: float | None = None  # peak; None for trainer.default_learning_rate
    cross_entropy_weight: float = CROSS_ENTROPY_WEIGHT  # EAGLE-1/2 heads only
    draft_vocab: int = DRAFT_VOCAB  # the most tokens that a head learns, and an EAGLE-3 head can propose
    unroll: int | None = None  # steps that a row of an EAGLE head is trained through; None for UNROLLED
    block_size: int = BLOCK_SIZE  # rows of a block of a block head
    head_layers: int = HEAD_LAYERS  # of a block head
    self_generate: int = 0  # prompts that the target answers itself, once at T=0 and once at T=1
    answer_tokens: int = 256  # the most tokens of a self-generated answer
    evaluate: int = 4  # held-out prompts
    quant: str = "none"  # quantisation of the target's layers
    dtype: str = "float32"  # dtype of the target's other weights; the head is trained in float32
    seed: int = 0

    @property
    def steps_of_a_row(self) -> int:
        """The steps that a row is trained through, each but the first on the head's own output."""
        return UNROLLED.get(self.kind, 1) if self.unroll is None else self.unroll

    def finished_share(self, step: int, spent_s: float) -> float:
        """Return the finished share of the training, 0 to 1.

        Args:
            step: the updates so far; spent_s: the seconds that they took.
        """
        if self.steps is not None:
            return min(1.0, step / self.steps)
        assert self.minutes is not None
        return min(1.0, spent_s / (60 * self.minutes))

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise BadRequestError("give either --minutes or --steps")
        wrong = {
            "--minutes": self.minutes is not None and not 0 < self.minutes < float("inf"),
            "--steps": self.steps is not None and self.steps < 1,
            "--batch-tokens": self.batch_tokens < 1,
            "--max-length": self.max_length < 3,
            "--lr": self.learning_rate is not None and not 0 < self.learning_rate < float("inf"),
            "--cross-entropy-weight": not 0 <= self.cross_entropy_weight < float("inf"),
            "--draft-vocab": self.draft_vocab < 1,
            "--unroll": self.steps_of_a_row < 1,
            "--block-size": self.block_size < 2,
            "--head-layers": self.head_layers < 1,
            "--self-generate": self.self_generate < 0,
            "--answer-tokens": self.answer_tokens < 1,
            "--evaluate": self.evaluate < 0,
            "--seed": not 0 <= self.seed < 2**31,
        }
        for option, is_wrong in wrong.items():
            if is_wrong:
                raise BadRequestError(f"{option} is out of range")
