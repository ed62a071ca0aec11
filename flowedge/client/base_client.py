"""What the blocking client and the asyncio client have in common."""

from __future__ import annotations

import time
import weakref
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from flowedge.client.channel import SILENCE_S, stream_ended
from flowedge.client.chat.values import is_integer
from flowedge.client.request import checked_seconds
from flowedge.client.retrying import Retries
from flowedge.client.transcript import CANCELLED, AnswerStatistics, Chunk, Transcript
from flowedge.cluster.process import Security
from flowedge.cluster.settings import SecuritySettings
from flowedge.cluster.tls.channels import AsyncConnection, Connection
from flowedge.core.errors import BadRequestError, DeadlineError, DeviceLostError, FlowEdgeError
from flowedge.device.files import expand_home
from flowedge.network.address import checked_address
from flowedge.network.grpc_status import from_status, passed_deadline
from flowedge.v1 import generation_pb2 as pb

OnWaiting: TypeAlias = Callable[[int, float], None]
"""Called with a request's place in the queue, and the seconds after which it is expected to be begun."""


@dataclass(eq=False, repr=False)
class BaseClient:
    """A client of the agent at `address`.

    It connects with the first call, which raises AccessError if the peer's certificate does not fit.

    Attributes:
        timeout_s: seconds that a whole generation may take.
        silence_s: seconds without any message, signs of life included, after which a device is lost.
        retries: how often a request is sent again for which a device was lost, or which found no room and is
            expected to find some; only before its first event.
        name: the name that the device's certificate must have; any name of the cluster if None.
        cluster_dir: the directory of the credentials to show, as --cluster-dir; the state directory if None.
        security: credentials that are loaded already, instead of `cluster_dir`.

    Raises:
        BadRequestError: when the form of the address is not host:port, a number of seconds is wrong, or
            `cluster_dir` holds no credentials.
        AccessError: when the files of `cluster_dir` cannot be used.
    """

    address: str
    _: KW_ONLY
    timeout_s: float = 600.0
    silence_s: float = SILENCE_S
    retries: int = 0
    name: str | None = None
    cluster_dir: str | Path | None = None
    security: Security | None = None
    _connection: Connection | AsyncConnection = field(init=False)
    _answers: weakref.WeakSet[StreamedTranscript] = field(init=False, default_factory=weakref.WeakSet)

    def __post_init__(self) -> None:
        if not isinstance(self.address, str):
            raise BadRequestError(f"the address is {self.address!r}; it must be text of the form host:port")
        checked_address(self.address)
        checked_seconds("timeout_s", self.timeout_s)
        checked_seconds("silence_s", self.silence_s)
        if not is_integer(self.retries) or self.retries < 0:
            raise BadRequestError(f"retries is {self.retries!r}; it must be an integer of 0 or more")
        if self.cluster_dir is not None:
            if self.security is not None:
                raise BadRequestError("give either cluster_dir or security")
            directory = str(expand_home(str(self.cluster_dir)))
            self.security = Security.load(SecuritySettings(cluster_dir=directory))

    def error_of(self, error: grpc.RpcError) -> FlowEdgeError:
        """Take note of a failed call and return the FlowEdge error behind it."""
        self._connection.note(error)
        return from_status(error, self.address)

    def description_error(self, error: grpc.RpcError) -> FlowEdgeError:
        """Return the error behind a failed `describe`; it names the limit if the time was over."""
        if passed_deadline(error):
            limit = f"after {self.silence_s:g} s, the limit given by silence_s"
            return DeadlineError(f"device {self.address} had not answered {limit}")
        return self.error_of(error)

    def seconds_for(self, timeout_s: float | None) -> float:
        """Return the seconds that a generation may take: its own limit if it has one, or the client's."""
        return self.timeout_s if timeout_s is None else checked_seconds("timeout_s", timeout_s)

    def other_client(self, address: str) -> dict[str, Any]:
        """Return the arguments of a client of another agent of the pipeline."""
        return {"address": address, "silence_s": self.silence_s, "security": self.security}

    def follow(self, answer: StreamedTranscript) -> None:
        """Have an answer cancelled if the client is closed before the answer is complete."""
        self._answers.add(answer)

    def cancel_answers(self) -> None:
        for answer in list(self._answers):
            answer.close()


class StreamedTranscript(Transcript):
    """A transcript that grows while a call to a draft node streams its events.

    A request ends early, with the finish reason "cancelled", when `close` is called, when a loop over the
    chunks is left, when the client is closed, or when nothing refers to the answer any more.

    Attributes:
        on_end: called once, when the answer is complete, has failed or was cancelled by `close`.
    """

    def __init__(
        self, client: BaseClient, request_id: str, timeout_s: float, on_waiting: OnWaiting | None = None
    ) -> None:
        super().__init__()
        self._on_waiting = on_waiting
        self.request_id = request_id
        self._client = client
        self._timeout_s = timeout_s
        self._error: FlowEdgeError | None = None
        self._retries = Retries(client.retries)
        self.on_end: Callable[[StreamedTranscript], None] | None = None
        self._started = time.monotonic()
        self._token_times: list[float] = []  # of chunks with tokens, in seconds of the monotonic clock
        client.follow(self)

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
            self._tell_end()

    @abstractmethod
    def _cancel(self) -> None:
        """End the call."""

    def _take(self, event: pb.GenerateEvent) -> Chunk | None:
        """Add an event, and tell of a new place in the queue; see Transcript.apply."""
        chunk = self.apply(event)
        if self.expected_s is not None and event.WhichOneof("body") == "waiting" and self._on_waiting:
            self._on_waiting(self.queue_position, self.expected_s)
        if chunk is not None and chunk.token_ids:
            self._token_times.append(time.monotonic())
        if self.finish_reason is not None:
            self._tell_end()
        return chunk

    def _tell_end(self) -> None:
        told, self.on_end = self.on_end, None
        if told is not None:
            told(self)

    def _left_s(self) -> float:
        """Return the seconds that the answer may still take."""
        return self._started + self._timeout_s - time.monotonic()

    def _pause_before_retry(self, error: FlowEdgeError) -> float | None:
        """Return the seconds after which the request is sent again; None if it is not."""
        if self.seed is not None:
            return None
        pause_s = self._retries.pause_s(error, self._left_s())
        if pause_s is not None:
            self.queue_position, self.expected_s = 0, None
        return pause_s

    def _check_not_failed(self) -> None:
        """Raise the error that ended the answer, if there was one."""
        if self._error is not None:
            raise self._error

    def _failed(self, error: FlowEdgeError) -> FlowEdgeError:
        """Take note that the answer has failed, and end its call; return the error with the request's id."""
        self._error = error.of_request(self.request_id)
        self._cancel()
        self._tell_end()
        return self._error

    def _silent(self) -> FlowEdgeError:
        limit = f"no sign of life for {self._client.silence_s:g} s, the limit given by silence_s"
        return DeviceLostError(self._client.address, limit)

    def _error_of(self, error: grpc.RpcError) -> FlowEdgeError:
        if passed_deadline(error):
            limit = f"after {self._timeout_s:g} s, the limit given by timeout_s"
            return DeadlineError(f"the answer of {self._client.address} was not complete {limit}")
        return self._client.error_of(error)

    def _ended_early(self) -> FlowEdgeError:
        return stream_ended(self._client.address, "the answer was complete")

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
