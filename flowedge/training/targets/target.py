"""The frozen target, as training needs it: features streamed text by text, logits, embeddings and answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.request import DecodeCounters
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.loading import Target, load_drafter
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.features import max_positions
from flowedge.models.layers.head import LMHead
from flowedge.models.layers.taps import Taps

TokenIds = npt.NDArray[np.int32]  # [length]


@dataclass(frozen=True)
class Question:
    """A prompt of token ids that the target is to answer, within its context."""

    prompt: Sequence[int]
    sampling: SamplingParams
    max_new_tokens: int


class TrainingTarget(ABC):
    """A target whose weights are loaded, here or on other devices.

    Attributes:
        lm_head, embedding: on `device`, the trainer's own; tokenizer, eos: of the checkpoint.
        taps: layers whose inputs are in the rows (see models/layers/taps.py).
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        lm_head: LMHead,
        embedding: nn.Embedding,
        tokenizer: Any,
        eos: frozenset[int],
        taps: Taps,
    ) -> None:
        self.checkpoint = checkpoint
        self.lm_head = lm_head
        self.embedding = embedding
        self.tokenizer = tokenizer
        self.eos = eos
        self.taps = taps

    @property
    def context(self) -> int:
        """The longest text it takes, in tokens."""
        return max_positions(self.checkpoint.config)

    @property
    def device(self) -> torch.device:
        """Where features and logits are, and the head is trained."""
        return self.lm_head.weight.device

    @abstractmethod
    def features(self, texts: Iterable[TokenIds]) -> Generator[Tensor, None, None]:
        """The rows of each text in turn, float32 [length, width] on `device`.

        A row is the hidden state after the final norm, then what is tapped. `texts` may be endless: it is
        read a few texts ahead, and closing the iterator calls off what was begun. Raises DeviceLostError,
        which names the device, when one is lost.
        """

    @abstractmethod
    def answers(self, questions: Iterable[Question]) -> Iterator[list[int]]:
        """What the target answers to each question in turn, its eos included.

        CapacityError for a prompt that leaves no room in the context; others as in `features`.
        """

    @abstractmethod
    def decode(self, head: Path, questions: Iterable[Question], strategy: str) -> Iterator[DecodeCounters]:
        """What it takes to answer each question in turn with a saved head as the drafter.

        Errors as in load_drafter and `features`.
        """

    def embed(self, tokens: TokenIds) -> Tensor:
        """The embeddings [..., hidden] of tokens [...], float32, as drafters give them to their heads."""
        with torch.no_grad():
            ids = torch.from_numpy(tokens.astype(np.int64)).to(self.device)
            embedded: Tensor = self.embedding(ids)
        return embedded.float()

    def room(self, question: Question) -> int:
        """How many tokens the answer may have. CapacityError when there is no room for one."""
        room = min(question.max_new_tokens, self.context - len(question.prompt))
        if room < 1:
            raise CapacityError(
                f"a prompt of {len(question.prompt)} tokens leaves no room in a context of {self.context}"
            )
        return room

    def load_drafter(self, head: Path, lm_head: LMHead) -> Drafter:
        """A saved head as a drafter with an LM head on the CPU. Errors as in flowedge.drafting.loading."""
        choice = Target(self.checkpoint, lm_head, self.tokenizer, lm_head.weight.dtype)
        drafter = load_drafter((str(head),), choice)
        assert drafter is not None, "a folder is named"
        return drafter


OpenTarget = Callable[[str, str, torch.dtype, Taps], AbstractContextManager[TrainingTarget]]
"""Opens a target: its source, the quantisation of its layers, the dtype of its other weights, its taps."""


def check_device(name: str) -> torch.device:
    """The device of that name; BadRequestError when torch cannot compute on it here."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BadRequestError(f"--device {name}: no such device: {error}") from error
    if device.type not in ("cpu", "cuda"):
        raise BadRequestError(f"--device {name}: give cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadRequestError(
            f"--device {name}: this torch ({torch.__version__}) finds no CUDA device; "
            "install one that is built for the machine's GPU, or give --device cpu"
        )
    return device
