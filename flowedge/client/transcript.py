"""What a draft node has sent for one request so far, checked."""

from __future__ import annotations

import json
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeAlias

from pydantic import TypeAdapter, ValidationError

from flowedge.client.messages import ChatMessage, ToolCall
from flowedge.client.request import Recovery
from flowedge.core.errors import FlowEdgeError, ProtocolError
from flowedge.core.plain_text import counted
from flowedge.core.request import drafting_gain
from flowedge.engine.statistics import RequestStatistics
from flowedge.v1 import generation_pb2 as pb

CANCELLED = "cancelled"
_MOST_LOGPROB = 1e-6  # rounding

OnWaiting: TypeAlias = Callable[[int, float], None]
"""Called with a request's place in the queue, and the seconds after which it is expected to be begun."""
OnRecovering: TypeAlias = Callable[[Recovery | None], None]
"""Called with what was lost, and again when more is known of it, while an answer waits to go on; with None
when it goes on."""


@dataclass(frozen=True)
class Callbacks:
    """What code that reads an answer is told beside its chunks; see `Client.generate`."""

    on_waiting: OnWaiting | None = None
    on_recovering: OnRecovering | None = None


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability that the model gives a token, before temperature, penalties, biases and grammar.

    Attributes:
        text: UTF-8 of the token, which may be a part of a character.
        likeliest: the likeliest tokens at this place, the likeliest first.
        special: whether it is a special token, which the text of an answer lacks.
    """

    token_id: int
    logprob: float
    text: bytes
    likeliest: tuple[TokenLogprob, ...] = ()
    special: bool = False


@dataclass(frozen=True)
class ToolCallDelta:
    """The next part of a tool call.

    Attributes:
        index: counts the tool calls of the answer from 0.
        id, name: in the first part of a call; "" in others.
        arguments: the next part of the JSON text.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


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
        gain = self._gain()
        parts += [gain] if gain else []
        return ", ".join(parts) or "no statistics"

    def _number(self, name: str) -> float | None:
        value = self.get(name)
        return value if isinstance(value, int | float) else None

    def _gain(self) -> str:
        """Return what drafts gained; "" for decoding without drafts."""
        counters = self.get("counters")
        if not isinstance(counters, dict) or not counters.get("draft_layers"):
            return ""
        counts: list[list[int]] = []
        for name in ("accepted_per_round", "accepted_per_segment"):
            values = counters.get(name)
            counts.append(
                [each for each in values if isinstance(each, int)] if isinstance(values, list) else []
            )
        plain = counters.get("plain_tokens_per_s")
        return drafting_gain(
            self._number("tokens_per_s") or 0.0, plain if isinstance(plain, int | float) else 0.0, *counts
        )


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
        recovering: what was lost, while the answer waits to go on; None otherwise.
        token_ids: tokens of the answer, without the prompt's.
        reasoning: what the model thought before its answer, where that is separated from the text.
        tool_calls: the calls that the answer asks for.
        logprobs: of each token, if the request asked for them.
        prompt_text: text of the prompt, if the request asked for it with `echo`.
        prompt_logprobs: of each token of the prompt, if the request asked for `echo` and `logprobs`. That of
            the first token, which the model does not give, is NaN.
        system_folded: whether system messages stand in messages of the user, because the model's chat
            template takes none.
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
    recovering: Recovery | None = None
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_text: str = ""
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    system_folded: bool = False
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
        if body == "recovering" and self.finish_reason is None:
            self.recovering = Recovery.from_proto(event.recovering)
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
            self.system_folded = event.started.system_folded
            return None
        if body == "finished":
            self.statistics = _statistics(event.finished.statistics_json)
            self.finish_reason = event.finished.reason
            return None
        return self._add(event.chunk)

    def _add(self, sent: pb.Chunk) -> Chunk:
        self.recovering = None
        chunk = Chunk(
            tuple(sent.token_ids), sent.text, sent.reasoning, read_deltas(sent), read_logprobs(sent)
        )
        self.tool_calls = add_deltas(self.tool_calls, chunk.tool_calls)
        self.token_ids.extend(chunk.token_ids)
        self.text += chunk.text
        self.reasoning += chunk.reasoning
        self.logprobs.extend(chunk.logprobs)
        self.prompt_logprobs.extend(self._read_prompt_logprobs(sent))
        return chunk

    def _read_prompt_logprobs(self, sent: pb.Chunk) -> Iterator[TokenLogprob]:
        for place, each in enumerate(sent.prompt_logprobs, len(self.prompt_logprobs)):
            if (each.token_id,) != self.prompt_ids[place : place + 1]:
                raise ProtocolError("the draft node sent log-probabilities that are not those of the prompt")
            if place:
                yield _logprob(each, tuple(map(_logprob, each.likeliest)))
            else:
                yield TokenLogprob(each.token_id, math.nan, each.text, (), each.special)


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


class StreamedTranscript(Transcript):
    """A transcript that grows while a call to a draft node streams its events.

    A request ends early, with the finish reason "cancelled", when `close` is called, when a loop over the
    chunks is left, when the client is closed, or when nothing refers to the answer any more.

    Attributes:
        on_end: called once, when the answer is complete, has failed or was cancelled by `close`.
    """

    def __init__(self, request_id: str, callbacks: Callbacks) -> None:
        super().__init__()
        self._callbacks = callbacks
        self.request_id = request_id
        self._error: FlowEdgeError | None = None
        self.on_end: Callable[[StreamedTranscript], None] | None = None
        self._started = time.monotonic()
        self._token_times: list[float] = []  # of chunks with tokens, in seconds of the monotonic clock

    @property
    def running(self) -> bool:
        """Whether the answer may still grow."""
        return self.finish_reason is None and self._error is None

    def close(self) -> None:
        """Cancel the request; has no effect if the answer is complete or has failed."""
        if self.running:
            self.finish_reason = CANCELLED
            self.statistics = self._statistics_so_far()
            self._cancel()
            self._notify_end()

    @abstractmethod
    def _cancel(self) -> None:
        """End the call."""

    def _take(self, event: pb.GenerateEvent | None) -> Chunk | None:
        """Add an event, and tell of a new place in the queue; see Transcript.apply.

        event: None where the request is sent again, and so waits no longer.
        """
        if event is None:
            self.queue_position, self.expected_s = 0, None
            return None
        recovering = self.recovering
        chunk = self.apply(event)
        if (
            self.expected_s is not None
            and event.WhichOneof("body") == "waiting"
            and self._callbacks.on_waiting
        ):
            self._callbacks.on_waiting(self.queue_position, self.expected_s)
        if self.recovering != recovering and self._callbacks.on_recovering:
            self._callbacks.on_recovering(self.recovering)
        if chunk is not None and chunk.token_ids:
            self._token_times.append(time.monotonic())
        if self.finish_reason is not None:
            self._notify_end()
        return chunk

    def _notify_end(self) -> None:
        told, self.on_end = self.on_end, None
        if told is not None:
            told(self)

    def _check_not_failed(self) -> None:
        """Raise the error that ended the answer, if there was one."""
        if self._error is not None:
            raise self._error

    def _failed(self, error: FlowEdgeError) -> FlowEdgeError:
        """Take note that the answer has failed, and end its call; return the error with the request's id."""
        self._error = error.of_request(self.request_id)
        self._cancel()
        self._notify_end()
        return self._error

    def _statistics_so_far(self) -> AnswerStatistics:
        """Return what this side knows of an answer that is not complete; the names are RequestStatistics'."""
        now = time.monotonic()
        known = AnswerStatistics(finish_reason=CANCELLED, new_tokens=len(self.token_ids))
        known["total_s"] = now - self._started
        if self.seed is not None:
            known |= {"session": self.session, "seed": self.seed, "prompt_tokens": len(self.prompt_ids)}
            known["queue_s"] = self.queue_s
        if self._token_times:
            first, last = self._token_times[0], self._token_times[-1]
            known |= {"ttft_s": first - self._started - self.queue_s, "decode_s": last - first}
            if last > first:
                known["tokens_per_s"] = (len(self.token_ids) - 1) / (last - first)
        return known


def typed_statistics(content: Mapping[str, Any]) -> RequestStatistics:
    """Read what `Generation.statistics` holds.

    Raises:
        ProtocolError: when a value is missing, has the wrong type or cannot be true.
    """
    try:
        statistics = _adapter().validate_python(content)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise ProtocolError(f"the draft node sent statistics with a bad {key}: {problem['msg']}") from error
    times = {
        "queue_s": statistics.queue_s,
        "ttft_s": statistics.ttft_s,
        "decode_s": statistics.decode_s,
        "total_s": statistics.total_s,
        **{f"itl_s.{place}": gap for place, gap in enumerate(statistics.itl_s)},
    }
    for name, seconds in times.items():
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ProtocolError(f"the draft node sent statistics with a {name} of {seconds}")
    if len(statistics.itl_s) != max(statistics.new_tokens - 1, 0):
        raise ProtocolError(
            f"the draft node sent {len(statistics.itl_s)} times between {statistics.new_tokens} tokens"
        )
    return statistics


@cache
def _adapter() -> TypeAdapter[RequestStatistics]:
    return TypeAdapter(RequestStatistics)


def read_logprobs(chunk: pb.Chunk) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of a chunk.

    Raises:
        ProtocolError: when there is not one for each token, or a value cannot be true.
    """
    if chunk.logprobs and [each.token_id for each in chunk.logprobs] != list(chunk.token_ids):
        raise ProtocolError("the draft node sent log-probabilities that are not those of its tokens")
    return tuple(_logprob(each, tuple(map(_logprob, each.likeliest))) for each in chunk.logprobs)


def _logprob(sent: pb.TokenLogprob, likeliest: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    if math.isnan(sent.logprob) or sent.logprob > _MOST_LOGPROB:
        raise ProtocolError(f"the draft node sent a log-probability of {sent.logprob}")
    return TokenLogprob(sent.token_id, sent.logprob, sent.text, likeliest, sent.special)


def read_deltas(chunk: pb.Chunk) -> tuple[ToolCallDelta, ...]:
    return tuple(ToolCallDelta(each.index, each.id, each.name, each.arguments) for each in chunk.tool_calls)


def add_deltas(calls: Sequence[ToolCall], deltas: Iterable[ToolCallDelta]) -> list[ToolCall]:
    """Return tool calls with further parts.

    Raises:
        ProtocolError: when a part belongs to no call, or a call begins without a name or has two.
    """
    added = list(calls)
    for delta in deltas:
        if delta.index == len(added):
            if not (delta.id and delta.name):
                raise ProtocolError("the draft node sent a tool call without an id or a name")
            added.append(ToolCall(delta.id, delta.name, delta.arguments))
        elif delta.index < len(added) and not (delta.id or delta.name):
            call = added[delta.index]
            added[delta.index] = replace(call, arguments=call.arguments + delta.arguments)
        else:
            raise ProtocolError(
                f"the draft node sent a part of tool call {delta.index} after {len(added)} calls"
            )
    return added
