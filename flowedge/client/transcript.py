"""What a draft node has sent for one request so far."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from flowedge.client.chat.messages import ChatMessage, ToolCall
from flowedge.client.chat.received import (
    TokenLogprob,
    ToolCallDelta,
    add_deltas,
    read_deltas,
    read_logprobs,
)
from flowedge.core.errors import ProtocolError
from flowedge.core.plain_text import counted
from flowedge.v1 import generation_pb2 as pb

CANCELLED = "cancelled"


@dataclass(frozen=True)
class Chunk:
    """Tokens that were accepted together, and the text they complete (it may be empty).

    Attributes:
        reasoning, tool_calls: parts of the answer that its text is without, where they are separated.
        logprobs: one for each token, if the request asked for them.
    """

    token_ids: tuple[int, ...]
    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class AnswerStatistics(dict[str, Any]):
    """What was measured about one answer, as a dict; str() gives the main figures on one line."""

    def __str__(self) -> str:
        parts = []
        tokens = self._number("new_tokens")
        if tokens is not None:
            cancelled = " (cancelled)" if self.get("finish_reason") == CANCELLED else ""
            parts.append(f"{counted(int(tokens), 'token')}{cancelled}")
        for name, text in (
            ("tokens_per_s", "{:.1f} tokens/s"),
            ("ttft_s", "first token after {:.2f} s"),
        ):
            number = self._number(name)
            if number is not None:
                parts.append(text.format(number))
        rounds = self._tokens_of_rounds()
        if rounds:
            parts.append(f"{fmean(rounds):.1f} tokens a round")
        return ", ".join(parts) or "no statistics"

    def _number(self, name: str) -> float | None:
        value = self.get(name)
        return value if isinstance(value, int | float) else None

    def _tokens_of_rounds(self) -> list[float]:
        """Return the tokens of each round; empty for decoding without drafts, which has no rounds."""
        counters = self.get("counters")
        if not isinstance(counters, dict) or not counters.get("draft_layers"):
            return []
        rounds = counters.get("accepted_per_round")
        return [each for each in rounds if isinstance(each, int)] if isinstance(rounds, list) else []


@dataclass(eq=False)
class Transcript:
    """The events of one answer, added up.

    Attributes:
        session: name of the session in the draft node's logs and timelines.
        seed: the seed that was given or drawn; None before the draft node has started.
        prompt_ids: the prompt as the model sees it.
        queue_position: the place of the request among those that wait for room, 1 for the next; 0 if it
            does not wait, or not any more.
        expected_s: seconds after which a waiting request is expected to be begun; None if it does not wait.
        queue_s: seconds that the request waited for room.
        token_ids: tokens of the answer, without the prompt's.
        reasoning: what the model thought before its answer, where that is separated from the text.
        tool_calls: the calls that the answer asks for.
        logprobs: of each token, if the request asked for them.
        prompt_text: text of the prompt, if the request asked for it with `echo`.
        finish_reason: "eos", "stop", "length" or "tool_calls"; CANCELLED if the request was cancelled here
            before its end; None while the answer is not complete.
        statistics: what the draft node measured, or what this side measured if the request was cancelled;
            empty while the answer is not complete.
    """

    session: str = ""
    seed: int | None = None
    prompt_ids: tuple[int, ...] = ()
    queue_position: int = 0
    expected_s: float | None = None
    queue_s: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_text: str = ""
    finish_reason: str | None = None
    statistics: AnswerStatistics = field(default_factory=AnswerStatistics)

    @property
    def message(self) -> ChatMessage:
        """The answer as a message of the conversation."""
        return ChatMessage(
            "assistant", self.text, reasoning=self.reasoning, tool_calls=tuple(self.tool_calls)
        )

    def apply(self, event: pb.GenerateEvent) -> Chunk | None:
        """Add one event; return its chunk if it carries one.

        Raises:
            ProtocolError: when the event may not come at this point, or what it holds makes no sense.
        """
        body = event.WhichOneof("body")
        if body == "keep_alive":
            return None
        if body is None or self.finish_reason is not None or _comes_first(body) != (self.seed is None):
            raise ProtocolError(f"the draft node sent an event {body!r} at the wrong place")
        if body == "waiting":
            self.queue_position, self.expected_s = event.waiting.position, event.waiting.expected_s
            return None
        if body == "started":
            self.queue_position, self.expected_s, self.queue_s = 0, None, event.started.waited_s
            self.session, self.seed = event.started.session, event.started.seed
            self.prompt_ids = tuple(event.started.prompt_ids)
            self.prompt_text = event.started.prompt_text
            return None
        if body == "finished":
            self.statistics = _statistics(event.finished.statistics_json)
            self.finish_reason = event.finished.reason
            return None
        return self._add(event.chunk)

    def _add(self, sent: pb.Chunk) -> Chunk:
        chunk = Chunk(
            tuple(sent.token_ids), sent.text, sent.reasoning, read_deltas(sent), read_logprobs(sent)
        )
        self.tool_calls = add_deltas(self.tool_calls, chunk.tool_calls)
        self.token_ids.extend(chunk.token_ids)
        self.text += chunk.text
        self.reasoning += chunk.reasoning
        self.logprobs.extend(chunk.logprobs)
        return chunk


def _comes_first(body: str) -> bool:
    """Return whether an event comes before the first token, or is the one that announces it."""
    return body in ("waiting", "started")


def _statistics(text: str) -> AnswerStatistics:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"the draft node sent statistics that are not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ProtocolError("the draft node sent statistics that are not a JSON object")
    return AnswerStatistics(content)
