"""Training texts as tokens, the batches of them, and the order in which they are trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from flowedge.text.tokenizer import encode_messages
from flowedge.training.examples import Example, Message

LEAST_FILL = 0.7  # a text that fills less of the batch's longest text is not padded to it


@dataclass(frozen=True)
class Batch:
    """Texts of similar lengths, padded on their right, where no row sees the padding under a causal mask.

    Attributes:
        rows: float32 [texts, length, width], see TrainingTarget.features.
        spread: [texts, 1, 1], the standard deviation of each text's rows.
        tokens: int32 [texts, length].
        counted: bool [texts, length], see TrainingText; False for padding.
    """

    rows: Tensor
    spread: Tensor
    tokens: np.typing.NDArray[np.int32]
    counted: Tensor

    @classmethod
    def of(cls, documents: Sequence[TrainingText], rows: Sequence[Tensor], hidden: int) -> Batch:
        """The batch of some texts.

        Args:
            rows: the rows of each text, float32 [length, width].
            hidden: the width of the hidden state at the front of each row.
        """
        spread = torch.stack([each[:, :hidden].std() for each in rows])
        tokens = [torch.from_numpy(document.tokens) for document in documents]
        counted = [torch.from_numpy(document.counted) for document in documents]
        return cls(
            pad_sequence(list(rows), batch_first=True),
            spread[:, None, None],
            pad_sequence(tokens, batch_first=True).numpy(),
            pad_sequence(counted, batch_first=True).to(rows[0].device),
        )


def like_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """The texts' indices, longest first, in groups whose shortest text fills LEAST_FILL of the longest."""
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not groups or lengths[index] < LEAST_FILL * longest:
            groups.append([])
            longest = lengths[index]
        groups[-1].append(index)
    return groups


TEXT_PROMPT_TOKENS = 64  # the most tokens of a plain text that serve as a prompt


@dataclass(frozen=True)
class TrainingText:
    """A text as tokens.

    Attributes:
        tokens: int32 [length].
        counted: bool [length], True for the tokens of the assistant, which the head learns to predict.
    """

    tokens: npt.NDArray[np.int32]
    counted: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def rows(self) -> npt.NDArray[np.bool_]:
        """bool [length - 1], True for the head's rows that count: row t predicts token t + 2."""
        return np.append(self.counted[2:], False)

    @property
    def is_useful(self) -> bool:
        return bool(self.counted[2:].any())

    def cut(self, limit: int) -> TrainingText:
        return TrainingText(self.tokens[:limit], self.counted[:limit])


def document_of(tokenizer: Any, example: Example) -> TrainingText:
    """The tokens of an example by the model's chat template; all tokens of a plain text count."""
    if example.text:
        tokens = [*tokenizer.encode(example.text), *_eos(tokenizer)]
        return TrainingText(np.array(tokens, dtype=np.int32), np.ones(len(tokens), dtype=np.bool_))
    tokens = _encode(tokenizer, example.messages)
    counted = np.zeros(len(tokens), dtype=np.bool_)
    for index, message in enumerate(example.messages):
        if message.role == "assistant":
            before = _encode_prompt(tokenizer, example.messages[:index])
            through = _encode(tokenizer, example.messages[: index + 1])
            counted[_shared(before, tokens) : _shared(through, tokens)] = True
    return TrainingText(np.array(tokens, dtype=np.int32), counted)


def answered(prompt: Sequence[int], answer: Sequence[int]) -> TrainingText:
    """The text of a prompt and the target's answer, given as tokens."""
    tokens = np.array([*prompt, *answer], dtype=np.int32)
    return TrainingText(tokens, np.arange(len(tokens)) >= len(prompt))


def prompt_tokens(tokenizer: Any, example: Example) -> list[int]:
    """The tokens that the target is to answer, or the start of a plain text. Errors as in document_of."""
    if example.text:
        ids = [int(token) for token in tokenizer.encode(example.text)]
        return ids[: max(1, min(TEXT_PROMPT_TOKENS, len(ids) // 2))]
    return _encode_prompt(tokenizer, example.opening)


@dataclass(frozen=True)
class Update:
    """The texts of one update, by index; `is_last` tells that the epoch ends with it."""

    documents: list[int]
    is_last: bool


def updates_from(
    lengths: Sequence[int], batch_tokens: int, seed: int, epoch: int, batch: int
) -> Iterator[Update]:
    """Yield the updates from a place in the data on, without end; each epoch is shuffled anew.

    An update has at most `batch_tokens` tokens, or one text. The updates depend on the arguments alone, so
    that an interrupted training can be continued.
    """
    while True:
        batches = epoch_batches(lengths, batch_tokens, seed, epoch)
        for index in range(batch, len(batches)):
            yield Update(batches[index], index + 1 == len(batches))
        epoch, batch = epoch + 1, 0


def epoch_batches(lengths: Sequence[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """The texts' indices in the batches of one epoch; see updates_from."""
    batches: list[list[int]] = []
    room = 0
    for index in np.random.default_rng((seed, epoch)).permutation(len(lengths)).tolist():
        if lengths[index] > room:
            batches.append([])
            room = batch_tokens
        batches[-1].append(index)
        room -= lengths[index]
    return batches


def _encode_prompt(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    return encode_messages(tokenizer, [message._asdict() for message in messages])


def _encode(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """The tokens of a complete conversation."""
    ids = encode_messages(tokenizer, [message._asdict() for message in messages], answered=True)
    return ids if getattr(tokenizer, "chat_template", None) else [*ids, *_eos(tokenizer)]


def _eos(tokenizer: Any) -> list[int]:
    return [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """The length of the common start: a template may write an earlier turn unlike the last one."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
