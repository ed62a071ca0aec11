"""What the rules of an answer say after the tokens of a path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from flowedge.core.arrays import BoolArray, FloatArray, IntArray
from flowedge.core.sampling import LogitRules
from flowedge.text.grammar_matcher import GrammarMatcher


class PathRules:
    """The rules of one answer, at a path of tokens that grows and shrinks at its end."""

    def __init__(self, rules: LogitRules, matcher: GrammarMatcher | None) -> None:
        """Begin before the first token; `matcher` is of the rules' grammar, if there is one."""
        self._rules = rules
        self._penalises = rules.penalises
        self._biased: IntArray = np.array([token for token, _ in rules.logit_bias], dtype=np.int64)
        self._biases: FloatArray = np.array([bias for _, bias in rules.logit_bias], dtype=np.float64)
        self._prompt: IntArray = np.array(rules.prompt_tokens, dtype=np.int64)
        self._ends: IntArray = np.array(rules.ends, dtype=np.int64)
        self._matcher = matcher
        self._tokens: list[int] = []
        self._counts: Counter[int] = Counter()

    def go_to(self, tokens: Sequence[int]) -> None:
        """Stand after these tokens of the answer, wherever the path was. Raises what `push` raises."""
        wanted = list(tokens)
        common = len(self._tokens)
        if self._tokens != wanted[:common]:
            pairs = zip(self._tokens, wanted, strict=False)
            common = next((at for at, (own, new) in enumerate(pairs) if own != new), len(wanted))
            common = min(common, len(wanted))
            self.pop(len(self._tokens) - common)
        for token in wanted[common:]:
            self.push(token)

    def push(self, token: int) -> None:
        """Go on by a token. Raises BadRequestError when the grammar exceeds a limit here."""
        if self._matcher is not None:
            self._matcher.push(token)
        self._tokens.append(token)
        if self._penalises:
            self._counts[token] += 1

    def pop(self, count: int) -> None:
        """Take back the last tokens."""
        if self._matcher is not None:
            self._matcher.pop(count)
        for _ in range(count):
            token = self._tokens.pop()
            if self._penalises:
                self._counts[token] -= 1
                if not self._counts[token]:
                    del self._counts[token]

    @property
    def ended(self) -> bool:
        """Whether the grammar has ended, so that no further token is of any meaning."""
        return self._matcher is not None and self._matcher.ended

    def allowed(self) -> BoolArray | None:
        """Return which tokens the grammar allows here: bool [vocab]; None where any may follow.

        Raises:
            BadRequestError: when the grammar allows none, or exceeds a limit here.
        """
        return None if self._matcher is None or self._matcher.ended else self._matcher.allowed()

    def adjust(self, scores: FloatArray) -> None:
        """Add the biases to logits [vocab], and subtract the penalties for presence and frequency."""
        if len(self._biased):
            scores[self._biased] += self._biases
        if self._counts:
            counts = np.fromiter(self._counts.values(), dtype=np.float64, count=len(self._counts))
            scores[self._counted()] -= self._rules.presence_penalty + self._rules.frequency_penalty * counts

    def apply(self, scores: FloatArray) -> None:
        """Change logits, float64 [vocab], as the rules say. Raises what `allowed` raises."""
        penalty = self._rules.repetition_penalty
        if penalty != 1:
            seen = np.union1d(self._prompt, self._counted())
            scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
        self.adjust(scores)
        allowed = self.allowed()
        if allowed is not None:
            scores[~allowed] = -np.inf
        if len(self._ends) and len(self._tokens) < self._rules.min_tokens:
            ends = scores[self._ends]
            scores[self._ends] = -np.inf
            if not np.isfinite(scores.max()):
                scores[self._ends] = ends

    def _counted(self) -> IntArray:
        """The tokens of the answer, each once."""
        return np.fromiter(self._counts.keys(), dtype=np.int64, count=len(self._counts))
