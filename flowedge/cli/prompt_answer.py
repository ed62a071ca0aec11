"""The answer to one prompt, with its statistics and the verdict of `--check`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flowedge.client import Generation
from flowedge.client.transcript import typed_statistics
from flowedge.engine.statistics import RequestStatistics


@dataclass(frozen=True)
class Verdict:
    """The result of comparing one output, or several, with the plain model's.

    Attributes:
        tokens: number of tokens compared.
        tolerance: a difference of logits up to this is a tie.
        measured: the largest difference between 1-row and 16-row forwards, over `measured_tokens` tokens.
        complaint: what is wrong; None when the output is that of the plain model.
    """

    tokens: int
    ties: int
    tolerance: float
    measured: float
    measured_tokens: int
    complaint: str | None

    @property
    def passed(self) -> bool:
        return self.complaint is None

    def line(self) -> str:
        if self.complaint is not None and not self.measured_tokens:
            return f"check: the output DIFFERS from the plain model's: {self.complaint}"
        basis = (
            f"tolerance {self.tolerance:.2g} in logits: forwards of 1 and of several rows differ by up to "
            f"{self.measured:.2g} over {self.measured_tokens} tokens"
        )
        if self.complaint is not None:
            return f"check: the output DIFFERS from the plain model's: {self.complaint} ({basis})"
        ties = f" up to {self.ties} tie{'s' * (self.ties != 1)}" if self.ties else ""
        return f"check: the output is identical to the plain model's{ties}, {self.tokens} tokens ({basis})"


def sum_up(verdicts: Sequence[Verdict]) -> Verdict:
    """Return one verdict over all outputs; at least one verdict is needed."""
    failed = [number for number, verdict in enumerate(verdicts, 1) if not verdict.passed]
    complaint = None
    if failed:
        first = verdicts[failed[0] - 1]
        complaint = f"{len(failed)} of {len(verdicts)} outputs, first number {failed[0]}: {first.complaint}"
    return Verdict(
        tokens=sum(verdict.tokens for verdict in verdicts),
        ties=sum(verdict.ties for verdict in verdicts),
        tolerance=max(verdict.tolerance for verdict in verdicts),
        measured=verdicts[-1].measured,
        measured_tokens=verdicts[-1].measured_tokens,
        complaint=complaint,
    )


@dataclass(frozen=True)
class PromptAnswer:
    """The answer to one prompt.

    Attributes:
        client_ttft_s: seconds from the request to the first token, measured by this client.
        verdict: None without `--check`.
        asked, answered: when, on time.monotonic() of this client.
    """

    prompt: str
    prompt_ids: tuple[int, ...]
    token_ids: list[int]
    text: str
    seed: int
    finish_reason: str
    statistics: RequestStatistics
    client_ttft_s: float
    verdict: Verdict | None
    asked: float = 0.0
    answered: float = 0.0

    @classmethod
    def of(
        cls,
        prompt: str,
        generation: Generation,
        asked: float,
        answered: float,
        client_ttft_s: float | None = None,
        verdict: Verdict | None = None,
    ) -> PromptAnswer:
        """Return a complete answer; without `client_ttft_s`, that of the draft node stands in for it.

        Raises:
            ProtocolError: when the draft node's statistics make no sense.
        """
        statistics = typed_statistics(generation.statistics)
        return cls(
            prompt=prompt,
            prompt_ids=generation.prompt_ids,
            token_ids=generation.token_ids,
            text=generation.text,
            seed=generation.seed or 0,
            finish_reason=generation.finish_reason or "",
            statistics=statistics,
            client_ttft_s=statistics.ttft_s if client_ttft_s is None else client_ttft_s,
            verdict=verdict,
            asked=asked,
            answered=answered,
        )


def served_s(answers: Iterable[PromptAnswer]) -> float:
    """Return the seconds in which one of the prompts or several were being answered."""
    seconds, until = 0.0, 0.0
    for answer in sorted(answers, key=lambda each: each.asked):
        seconds += max(answer.answered - max(answer.asked, until), 0.0)
        until = max(until, answer.answered)
    return seconds
