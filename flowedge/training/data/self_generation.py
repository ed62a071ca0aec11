"""The target's own answers to training prompts, which are what the head will have to foresee."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowedge.core.errors import CheckpointError
from flowedge.core.sampling import SamplingParams
from flowedge.training.data.documents import TrainingText, answered
from flowedge.training.data.looping import is_looping
from flowedge.training.targets.target import Question, TrainingTarget

TEMPERATURES = (0.0, 1.0)


@dataclass(frozen=True)
class _Answer:
    prompt_length: int
    tokens: list[int]  # the prompt's, then the answer's


def self_generated(
    target: TrainingTarget,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
    seed: int,
    file: Path,
    advance: Callable[[int, int], None],
) -> list[TrainingText]:
    """The target's answers to prompts of token ids, at each of TEMPERATURES; those that loop are left out.

    Each is written to `file` when it is there, a JSON line each, and those that are in it already are not
    made again. `advance` is told how many are done, and of how many. CheckpointError for a file that cannot
    be read.
    """
    answers = _read(file)
    total = len(prompts) * len(TEMPERATURES)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as lines:
        for answer in answers:
            lines.write(_line(answer))
        advance(len(answers), total)
        questions = [
            Question(
                prompts[job // len(TEMPERATURES)],
                SamplingParams(temperature=TEMPERATURES[job % len(TEMPERATURES)], seed=seed + job),
                max_new_tokens,
            )
            for job in range(len(answers), total)
        ]
        for question, tokens in zip(questions, target.answers(questions), strict=True):
            answers.append(_Answer(len(question.prompt), [*question.prompt, *tokens]))
            lines.write(_line(answers[-1]))
            lines.flush()
            advance(len(answers), total)
    return [
        answered(answer.tokens[: answer.prompt_length], answer.tokens[answer.prompt_length :])
        for answer in answers
        if not is_looping(answer.tokens[answer.prompt_length :])
    ]


def _line(answer: _Answer) -> str:
    return json.dumps({"prompt_length": answer.prompt_length, "tokens": answer.tokens}) + "\n"


def _read(file: Path) -> list[_Answer]:
    """The whole lines of the file; a last one that was cut short is made again."""
    if not file.exists():
        return []
    try:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        entries = [json.loads(line) for line in lines if line.endswith("\n")]
        return [_Answer(int(entry["prompt_length"]), list(map(int, entry["tokens"]))) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error}); --restart begins anew") from error
