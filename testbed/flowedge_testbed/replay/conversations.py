"""The prompts of conversations: each holds the turns before it and the target's answers to them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from flowedge.core.sampling import SamplingParams
from flowedge.text.tokenizer import encode_messages
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.prompts import Dataset
from flowedge_testbed.replay.true_path import PathStore


class Conversations:
    """Conversations with a target, whose answers are its true paths: no method can answer otherwise."""

    def __init__(self, models: ModelSet, directory: Path, max_new_tokens: int) -> None:
        """directory: of the runs; an answer's true path is stored where the replay looks for it."""
        self._models = models
        self._max_new_tokens = max_new_tokens
        self._paths = PathStore(
            directory / "paths", models.checkpoint, models.head, models.drafter.taps, models.dtype
        )

    def prompts(self, dataset: Dataset, index: int, sampling: SamplingParams) -> list[tuple[int, ...]]:
        """Return the prompt of each turn, which all draw with the same seed.

        A conversation ends before a turn that does not fit the model's positions.
        """
        return list(self._prompts(dataset, index, sampling))

    def _prompts(self, dataset: Dataset, index: int, sampling: SamplingParams) -> Iterator[tuple[int, ...]]:
        models, prompt = self._models, dataset.prompts[index]
        yield prompt
        messages: list[dict[str, str]] = []
        turns = dataset.turns[index]
        for asked, following in pairwise(turns):
            path = self._paths.path(prompt, sampling, self._max_new_tokens, models.eos)
            drawn = [int(token) for token in path.tokens[path.prompt_tokens :] if token not in models.eos]
            answer = models.tokenizer.decode(drawn, skip_special_tokens=True)
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
            prompt = tuple(
                encode_messages(models.tokenizer, [*messages, {"role": "user", "content": following}])
            )
            if len(prompt) + self._max_new_tokens > models.max_positions:
                return
            yield prompt
