"""The frozen target as training needs it: features text by text, logits, embeddings and answers."""

from __future__ import annotations

import itertools
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.request import DecodeCounters, Request
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.files.config_support import max_positions
from flowedge.models.lm_head import LMHead, load_embedding
from flowedge.models.taps import Taps

PLAIN = "autoregressive"

TokenIds = npt.NDArray[np.int32]  # [length]


@dataclass(frozen=True)
class Question:
    """A prompt of token ids for the target to answer, within its context."""

    prompt: Sequence[int]
    sampling: SamplingParams
    max_new_tokens: int


class TrainingTarget(ABC):
    """A target whose layers are loaded, in this process or on other devices.

    Attributes:
        lm_head, embedding: the trainer's own, on `device`.
        tokenizer, eos: the checkpoint's tokenizer and end tokens.
        taps: the layers whose inputs are in the rows (see models/taps.py).
    """

    def __init__(
        self, checkpoint: Checkpoint, lm_head: LMHead, tokenizer: Any, eos: frozenset[int], taps: Taps
    ) -> None:
        self.checkpoint = checkpoint
        self.lm_head = lm_head
        weight = lm_head.weight
        self.embedding: nn.Embedding = load_embedding(checkpoint, dtype=weight.dtype, device=weight.device)
        self.tokenizer = tokenizer
        self.eos = eos
        self.taps = taps
        self._names = (f"t{uuid.uuid4().hex[:8]}-{number}" for number in itertools.count())

    @property
    def context(self) -> int:
        return max_positions(self.checkpoint.config)

    @property
    def device(self) -> torch.device:
        """The device of features and logits, on which the head is trained."""
        return self.lm_head.weight.device

    @abstractmethod
    def features(self, texts: Iterable[TokenIds]) -> Generator[Tensor, None, None]:
        """Yield the rows of each text, float32 [length, width] on `device`.

        A row is the hidden state after the final norm, then the tapped hidden states. `texts` may be endless:
        it is read a few texts ahead. Closing the generator cancels the texts that were begun.

        Raises:
            DeviceLostError: when a device is lost; the message names the device.
        """

    @abstractmethod
    def answers(self, questions: Iterable[Question]) -> Iterator[list[int]]:
        """Yield the target's answer to each question, its end token included.

        Raises:
            CapacityError: when a prompt leaves no room in the context.
            DeviceLostError: when a device is lost.
        """

    @abstractmethod
    def decode(self, drafter: str, questions: Iterable[Question], strategy: str) -> Iterator[DecodeCounters]:
        """Answer each question with a drafter, and yield the counters of its decoding.

        drafter: directory of a saved head, or the name of a drafter.

        Errors as in load_drafter and `answers`.
        """

    def embed(self, tokens: TokenIds) -> Tensor:
        """The embeddings [..., hidden] of tokens [...], float32, as drafters give them to their heads."""
        with torch.no_grad():
            ids = torch.from_numpy(tokens.astype(np.int64)).to(self.device)
            embedded: Tensor = self.embedding(ids)
        return embedded.float()

    def answer_budget(self, question: Question) -> int:
        """The most tokens that an answer may have."""
        answer_budget = min(question.max_new_tokens, self.context - len(question.prompt))
        if answer_budget < 1:
            raise CapacityError(
                f"a prompt of {len(question.prompt)} tokens leaves no room in a context of {self.context}"
            )
        return answer_budget

    def request(self, question: Question, strategy: str) -> Request:
        """The request of a question; its id is new. Errors as in `answer_budget`."""
        prompt, answer_budget = tuple(question.prompt), self.answer_budget(question)
        return Request(
            next(self._names), prompt, question.sampling, answer_budget, self.eos, strategy=strategy
        )

    def load_drafter(self, drafter: str, lm_head: LMHead) -> Drafter:
        """Load a saved head, or a drafter by name; `lm_head` is on the CPU. Errors as in load_drafter."""
        target = TargetModel(self.checkpoint, lm_head, self.tokenizer, lm_head.weight.dtype)
        loaded = load_drafter((drafter,), target)
        assert loaded is not None, "a drafter is named"
        return loaded


OpenTarget = Callable[[str, str, torch.dtype, Taps], AbstractContextManager[TrainingTarget]]
"""(source, quantisation of the layers, dtype of other weights, taps) -> the opened target."""


def check_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BadRequestError(f"--device {name}: no such device: {error}") from error
    if device.type not in ("cpu", "cuda"):
        raise BadRequestError(f"--device {name}: give cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadRequestError(
            f"--device {name}: this torch ({torch.__version__}) finds no CUDA device; "
            "install a torch that is built for the machine's GPU, or give --device cpu"
        )
    return device
