"""The target's own answers to training prompts, which resemble the texts that the head will draft."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowedge.core.errors import CheckpointError
from flowedge.core.sampling import SamplingParams
from flowedge.training.documents import TrainingText, answered
from flowedge.training.target import Question, TrainingTarget

TEMPERATURES = (0.0, 1.0)
LOOP_WINDOW = 16  # tokens of a run that a loop repeats


@dataclass(frozen=True)
class _WrittenAnswer:
    prompt: Sequence[int]
    tokens: Sequence[int]

    def as_line(self) -> str:
        entry = {"prompt_length": len(self.prompt), "tokens": [*self.prompt, *self.tokens]}
        return json.dumps(entry) + "\n"


def self_generated(
    target: TrainingTarget,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
    seed: int,
    file: Path,
    advance: Callable[[int, int], None],
) -> list[TrainingText]:
    """The target's answers to prompts of token ids, at each of TEMPERATURES, without answers that loop.

    Args:
        file: each answer is appended to it as a JSON line, and answers that it has are not made again.
        advance: called with the number of answers so far and the number of all answers.
    """
    answers = _read(file)
    total = len(prompts) * len(TEMPERATURES)
    file.parent.mkdir(parents=True, exist_ok=True)
    if answers:  # in a file of their own first, so that no interruption loses them
        whole = file.with_suffix(".part")
        whole.write_text("".join(answer.as_line() for answer in answers), encoding="utf-8")
        whole.replace(file)
    with file.open("a" if answers else "w", encoding="utf-8") as lines:
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
            answers.append(_WrittenAnswer(question.prompt, tokens))
            lines.write(answers[-1].as_line())
            lines.flush()
            advance(len(answers), total)
    return [answered(answer.prompt, answer.tokens) for answer in answers if not is_looping(answer.tokens)]


def is_looping(tokens: Sequence[int], window: int = LOOP_WINDOW, times: int = 3) -> bool:
    """Return whether a run of `window` tokens occurs at least `times` times, which flatters drafters."""
    runs = Counter(tuple(tokens[start : start + window]) for start in range(len(tokens) - window + 1))
    return any(count >= times for count in runs.values())


def _read(file: Path) -> list[_WrittenAnswer]:
    """The answers of the file's complete lines; an incomplete last line is ignored."""
    if not file.exists():
        return []
    try:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        answers: list[_WrittenAnswer] = []
        for entry in [json.loads(line) for line in lines if line.endswith("\n")]:
            length, tokens = int(entry["prompt_length"]), list(map(int, entry["tokens"]))
            answers.append(_WrittenAnswer(tokens[:length], tokens[length:]))
        return answers
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error}); --restart starts over") from error
