"""The answer of a session: the jobs that begin it, the tokens drawn, the text put out, and its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from flowedge.core.messages import Segment
from flowedge.core.request import Request, Tokens
from flowedge.core.sampling import RuledPath, TokenLikelihood
from flowedge.drafting.lookup.answer_store import EndedAnswer
from flowedge.engine.jobs import Verify


class TextStream(Protocol):
    """Turns tokens into text as they come; `push` holds incomplete characters back until `flush`."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...

    def show(self, tokens: frozenset[int]) -> None:
        """Have the text of these special tokens put out as well; called before the first token."""


@dataclass(frozen=True)
class Accepted:
    """Tokens up to the end of the generation, the text they complete, and the reason if it has ended."""

    tokens: tuple[int, ...]
    text: str
    reason: str | None


class OutputText:
    """Checks every token, in order, for the end of the generation.

    Text that could be the start of a stop string is held back until it is known not to be.
    """

    def __init__(self, request: Request, stream: TextStream) -> None:
        self._eos = request.eos
        self._stop = tuple(s for s in request.stop if s)
        self._room = request.max_new_tokens
        self._may_stop_at = request.max_new_tokens - request.min_tokens  # as room that is left
        self._stream = stream
        if request.shown_tokens:
            stream.show(request.shown_tokens)
        self._held = ""

    def push(self, tokens: tuple[int, ...]) -> Accepted:
        """Take in certain tokens; tokens after the end of the generation are left out."""
        text = ""
        for count, token in enumerate(tokens, start=1):
            self._room -= 1
            if token in self._eos:
                return Accepted(tokens[:count], text + self._rest(), "eos")
            self._held += self._stream.push(token)
            stopped = self._may_stop and self._cut()
            text += self._release()
            if stopped:
                return Accepted(tokens[:count], text, "stop")
            if self._room == 0:
                return Accepted(tokens[:count], text + self._rest(), "length")
        return Accepted(tokens, text, None)

    @property
    def _may_stop(self) -> bool:
        return self._room <= self._may_stop_at

    def _rest(self) -> str:
        self._held += self._stream.flush()
        if self._may_stop:
            self._cut()
        rest, self._held = self._held, ""
        return rest

    def _cut(self) -> bool:
        """Cut the held text at the first stop string; return whether it contained one."""
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if not found:
            return False
        self._held = self._held[: min(found)]
        self._stop = ()
        return True

    def _release(self) -> str:
        """Release the held text, except an end that could be the start of a stop string."""
        keep = 0
        for stop in self._stop if self._may_stop else ():
            for size in range(keep + 1, min(len(stop), len(self._held) + 1)):
                if self._held.endswith(stop[:size]):
                    keep = size
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text


class SessionAnswer:
    """The tokens of an answer.

    Attributes:
        finish_reason: why the answer has ended; None before its end.
        tokens: so far.
    """

    def __init__(self, request: Request, text: TextStream) -> None:
        """Begin behind the tokens that the request has as answered; their text is not put out again."""
        self._request = request
        self._output = OutputText(request, text)
        self.finish_reason = self._output.push(request.answered).reason
        self.tokens = [*request.answered]
        self._drawn: list[int] = [] if request.rules is None else [*request.answered]
        self._likelihoods: list[TokenLikelihood] = []  # of the tokens that are not put out yet
        self._of_prompt: list[TokenLikelihood] = []  # until the first token is put out

    def score_prompt(self, likelihoods: Sequence[TokenLikelihood]) -> None:
        """Take in the likelihoods of the next tokens of the prompt."""
        self._of_prompt += likelihoods

    def draw(self, tokens: Sequence[int], likelihoods: Sequence[TokenLikelihood]) -> None:
        """Take in tokens that the target has drawn, in order, with their likelihoods if there are any."""
        if self._request.rules is not None:
            self._drawn += tokens
            self._likelihoods += likelihoods

    @property
    def length(self) -> int:
        """The number of tokens so far."""
        return len(self.tokens)

    @property
    def ended(self) -> EndedAnswer | None:
        """The whole answer, for the drafts of its tenant's later requests; None before its end."""
        request = self._request
        if self.finish_reason is None or request.rows_only:
            return None
        return EndedAnswer.of(request.tenant, request.prompt, self.tokens)

    @property
    def path(self) -> RuledPath | None:
        """The rules, and the answer so far; None without rules."""
        rules = self._request.rules
        return None if rules is None else RuledPath(rules, tuple(self._drawn))

    def path_to(self, position: int) -> RuledPath | None:
        """Return the rules, and the answer up to a position; None if no rule changes draws."""
        rules, first = self._request.rules, len(self._request.prompt)
        if rules is None or not rules.changes_draws:
            return None
        return RuledPath(rules, tuple(self._drawn[: position + 1 - first]))

    def put_out(self, tokens: tuple[int, ...], now: float) -> Tokens:
        """Return the output of tokens that were drawn, up to the end of the answer."""
        accepted = self._output.push(tokens)
        self.finish_reason = accepted.reason
        self.tokens += accepted.tokens
        likelihoods = tuple(islice(self._likelihoods, len(accepted.tokens)))
        del self._likelihoods[: len(likelihoods)]
        of_prompt, self._of_prompt = tuple(self._of_prompt), []
        return Tokens(self._request.session, accepted.tokens, accepted.text, now, likelihoods, of_prompt)


SCORED_ROWS = 16  # of a job; the logits of more rows would take much memory for a large vocabulary


class PromptJobs:
    """Makes the jobs for committed rows of one session, from its segments in their order.

    A token is drawn after the last row of the prompt, and after each row that is committed behind it. Where
    the request asks for the likelihoods of the prompt's tokens, the rows are verified a few at a time, with
    the tokens that follow them in the prompt in place of draws.
    """

    def __init__(self, request: Request, answer: SessionAnswer) -> None:
        """Begin before the first segment has come back; `answer` knows the tokens that are drawn."""
        self._request, self._answer = request, answer
        self._given = np.array(request.given, dtype=np.int64)
        self._last = len(request.given) - 1  # position after which the first token is drawn
        self._segment: Segment | None = None  # whose rows have jobs
        self._next = 0  # offset of the row of the next job

    def put(self, segment: Segment) -> None:
        """Take in a segment that came back; `take` has returned None for the segment before it."""
        self._segment = segment
        scores = self._request.scores_prompt and segment.positions[0] < self._last
        self._next = 0 if scores else segment.num_rows - 1

    def take(self) -> Verify | None:
        """Return the next job; None if the segment has no further one."""
        segment = self._segment
        if segment is None or self._next >= segment.num_rows:
            return None
        positions = segment.positions[self._next : self._next + SCORED_ROWS]
        scored = positions[positions < self._last] if self._request.scores_prompt else positions[:0]
        if not len(scored) and positions[0] < self._last:
            return None
        count = max(len(scored), 1)
        rows = segment.take(np.arange(self._next, self._next + count))
        self._next += count
        return Verify(
            self._request.session,
            self._request.sampling,
            rows.payload,
            self._given.take(rows.positions, mode="clip"),  # those of the answer are of no meaning
            np.arange(-1, count - 1),
            rows.positions,
            self._answer.path,
            known=self._given[rows.positions + 1] if len(scored) else None,
        )
