"""Tokens of a request's answers, and how they were speculated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class AnswerUsage:
    """Tokens of one answer.

    Attributes:
        prompt: number of the answer's prompt; answers of the same prompt share its tokens.
        reasoning_tokens: of `new_tokens`, those until the end of the reasoning.
        statistics: what the draft node measured.
    """

    prompt: int
    prompt_tokens: int
    new_tokens: int
    reasoning_tokens: int = 0
    statistics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def counters(self) -> Mapping[str, Any]:
        counters = self.statistics.get("counters")
        return counters if isinstance(counters, Mapping) else {}

    @property
    def reused_rows(self) -> int:
        return int(self.counters.get("reused_rows", 0))


@dataclass(frozen=True)
class RequestUsage:
    """Tokens of all answers of a request.

    Attributes:
        pipeline: name of the pipeline that answered.
    """

    answers: Sequence[AnswerUsage]
    pipeline: str = ""

    @property
    def prompt_tokens(self) -> int:
        return sum(answer.prompt_tokens for answer in self._first_of_prompts())

    @property
    def cached_tokens(self) -> int:
        """Rows of the prompts that were taken from earlier requests."""
        return sum(answer.reused_rows for answer in self._first_of_prompts())

    @property
    def new_tokens(self) -> int:
        return sum(answer.new_tokens for answer in self.answers)

    @property
    def reasoning_tokens(self) -> int:
        return sum(answer.reasoning_tokens for answer in self.answers)

    def counts(self) -> dict[str, Any]:
        """Return the numbers of tokens as completions report them."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.new_tokens,
            "total_tokens": self.prompt_tokens + self.new_tokens,
        }

    def openai(self) -> dict[str, Any]:
        """Return the usage as completions report it, with the extension field `flowedge`."""
        return {
            **self.counts(),
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "flowedge": self.acceptance(),
        }

    def acceptance(self) -> dict[str, Any]:
        """Return how the tokens were speculated; times and speed are those of the slowest answer."""
        counters = [answer.counters for answer in self.answers]
        return {
            "tokens_per_segment": _mean(counters, "accepted_per_segment"),
            "tokens_per_round": _mean(counters, "accepted_per_round"),
            "accepted_drafts_per_segment": _accepted_drafts(counters),
            "draft_rows_sent": sum(each.get("draft_rows_sent", 0) for each in counters),
            "reused_rows": sum(answer.reused_rows for answer in self.answers),
            "ttft_s": max(self._measured("ttft_s"), default=0.0),
            "tokens_per_s": min(self._measured("tokens_per_s"), default=0.0),
            "plain_tokens_per_s": max(
                (each.get("plain_tokens_per_s", 0.0) for each in counters), default=0.0
            ),
            "queue_s": max(self._measured("queue_s"), default=0.0),
            "pipeline": self.pipeline,
        }

    def _measured(self, name: str) -> list[float]:
        """Return a value of the answers' statistics, of each that has it."""
        return [answer.statistics[name] for answer in self.answers if name in answer.statistics]

    def _first_of_prompts(self) -> list[AnswerUsage]:
        """Return the first answer of each prompt; the others reuse the rows that it computed."""
        firsts: dict[int, AnswerUsage] = {}
        for answer in self.answers:
            firsts.setdefault(answer.prompt, answer)
        return list(firsts.values())


def _accepted_drafts(counters: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean number of drafts that a segment brought and that became part of an answer.

    A round ends with the token that no draft had: a round of 4 tokens in 2 segments has 1.5 a segment.
    """
    rounds = [count for each in counters for count in each.get("accepted_per_round", ())]
    segments = sum(len(each.get("accepted_per_segment", ())) for each in counters)
    return (sum(rounds) - len(rounds)) / segments if segments else 0.0


def _mean(counters: Sequence[Mapping[str, Any]], name: str) -> float:
    """Return the mean over the segments or rounds of all answers; 0 if there are none."""
    counts = [count for each in counters for count in each.get(name, ())]
    return sum(counts) / len(counts) if counts else 0.0
