"""The prompts of the command line, each asked until there is room for it: one by one, or several at once."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from flowedge.cli.prompt_answer import PromptAnswer, Verdict
from flowedge.client import Client, Generation
from flowedge.client.transcript import OnRecovering, OnWaiting
from flowedge.core.errors import CapacityError, DeadlineError
from flowedge.core.generate_options import GenerateOptions

LEAST_S = 0.01  # of the time for an answer that a pause has used up; the error then is that of the deadline
JOIN_S = 5.0  # for a thread to end whose request was cancelled
MARGIN_S = 10.0  # beyond the time for an answer, after which its thread has given up by itself

Piece = str | BaseException | None
"""A part of the text, the error that ended the answer, or None at its end."""


@dataclass(eq=False)
class Questioner:
    """A prompt that is asked of a draft node.

    Attributes:
        timeout_s: seconds for the answer, waits for room included.
        stop: no request is begun, or begun again, when it is set.
        on_waiting: is told of the request's place in the queue (see Client.generate).
        on_recovering: is told of a device that was lost, and when the answer goes on (likewise).
        on_pause: is told of the seconds after which the prompt is asked again.
        generation: the answer so far; None before the prompt is asked.
        asked, answered: when, on time.monotonic().
    """

    client: Client
    prompt: str
    options: GenerateOptions
    timeout_s: float
    stop: threading.Event = field(default_factory=threading.Event)
    on_waiting: OnWaiting | None = None
    on_recovering: OnRecovering | None = None
    on_pause: Callable[[float], None] | None = None
    generation: Generation | None = None
    asked: float = 0.0
    answered: float = 0.0
    _first_token: float | None = None

    def texts(self) -> Iterator[str]:
        """Yield the text of the answer as it comes.

        If the draft node has no room, and says when it expects to have some, the prompt is asked again then.

        Raises the FlowEdgeError for which the answer cannot be completed.
        """
        self.asked = time.monotonic()
        pause_s: float | None = 0.0
        while pause_s is not None and not self.stop.wait(pause_s):
            left_s = max(self.asked + self.timeout_s - time.monotonic(), LEAST_S)
            pause_s = yield from self._try(left_s)
        self.answered = time.monotonic()

    def answer(self, verdict: Verdict | None) -> PromptAnswer:
        """Return the complete answer, with the verdict of `--check`.

        Raises:
            ProtocolError: when the draft node's statistics make no sense.
        """
        assert self.generation is not None, "the prompt has been asked"
        first = self.answered if self._first_token is None else self._first_token
        return PromptAnswer.of(
            self.prompt, self.generation, self.asked, self.answered, first - self.asked, verdict
        )

    def _try(self, left_s: float) -> Generator[str, None, float | None]:
        """Yield the text; return the seconds after which to ask again, None when the answer is complete."""
        with self.client.generate(
            self.prompt,
            timeout_s=left_s,
            options=self.options,
            on_waiting=self.on_waiting,
            on_recovering=self.on_recovering,
        ) as generation:
            self.generation = generation
            if self.stop.is_set():  # since it was looked at; whoever has set it may not have seen this answer
                generation.close()
            try:
                for chunk in generation:
                    self._first_token = self._first_token or time.monotonic()
                    yield chunk.text
            except CapacityError as error:
                pause_s = error.retry_after_s
                if pause_s is None or generation.token_ids or pause_s >= left_s:
                    raise
                if self.on_pause is not None:
                    self.on_pause(pause_s)
                return pause_s
        return None


class Questions(AbstractContextManager["Questions"]):
    """Prompts whose answers are read in their order; what still runs at the end of the context is cancelled.

    Threads ask the prompts, so many at once. A single prompt at once is asked when its answer is read.
    """

    def __init__(self, askings: Sequence[Questioner], at_once: int) -> None:
        self._askings = list(askings)
        self._pieces: list[queue.SimpleQueue[Piece]] = [queue.SimpleQueue() for _ in askings]
        self._left = deque(range(len(askings)))
        self._threads = [
            threading.Thread(target=self._ask_all, name="flowedge-asking", daemon=True)
            for _ in range(min(at_once, len(askings)) if at_once > 1 else 0)
        ]

    def __enter__(self) -> Questions:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for asking in self._askings:
            asking.stop.set()
        for asking in self._askings:
            if asking.generation is not None:
                asking.generation.close()
        for thread in self._threads:
            thread.join(JOIN_S)

    def texts(self, index: int) -> Iterator[str]:
        """Yield the text of an answer as it comes; what came before is yielded at once.

        Raises the error that ends the answer.
        """
        if not self._threads:
            yield from self._askings[index].texts()
            return
        # Its turn may come only when all answers before it have ended.
        wait_s = self._askings[index].timeout_s + MARGIN_S
        while True:
            try:
                piece = self._pieces[index].get(timeout=wait_s)
            except queue.Empty as error:
                raise DeadlineError(f"there was no answer within {wait_s:g} s") from error
            if piece is None:
                return
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    def _ask_all(self) -> None:
        while True:
            try:
                index = self._left.popleft()
            except IndexError:
                return
            pieces = self._pieces[index]
            try:
                for text in self._askings[index].texts():
                    pieces.put(text)
            except Exception as error:  # noqa: BLE001 (it is raised where the answer is read)
                pieces.put(error)
            else:
                pieces.put(None)
