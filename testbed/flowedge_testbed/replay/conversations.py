"""The prompts of conversations: each holds the turns before it and the target's answers to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flowedge.core.sampling import SamplingParams
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.prompts import Dataset


class Conversations:
    """Conversations with a target, whose answers are its true paths: no method can answer otherwise."""

    def __init__(self, models: ModelSet, directory: Path, max_new_tokens: int) -> None:
        """directory: of the runs; an answer's true path is stored where the replay looks for it."""
        self._models = models
        self._max_new_tokens = max_new_tokens
        self._paths = models.path_source(directory)

    def prompts(self, dataset: Dataset, index: int, sampling: SamplingParams) -> list[tuple[int, ...]]:
        """Return the prompt of each turn, which all draw with the same seed.

        A conversation ends before a turn that does not fit the model's positions.
        """
        return list(self._prompts(dataset, index, sampling))

    def _prompts(self, dataset: Dataset, index: int, sampling: SamplingParams) -> Iterator[tuple[int, ...]]:
        models, prompt = self._models, dataset.prompts[index]
        yield prompt
        turns = dataset.turns[index]
        answers: list[list[int]] = []
        for number in range(1, len(turns)):
            path = self._paths.path(prompt, sampling, self._max_new_tokens, models.eos)
            answers.append(path.tokens[path.prompt_tokens :].tolist())
            prompt = models.encode_turns(turns[: number + 1], answers, sampling)
            if len(prompt) + self._max_new_tokens > models.facts.max_positions:
                return
            yield prompt
