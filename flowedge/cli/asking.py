"""One prompt of the command line, asked until there is room for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from flowedge.cli.prompt_answer import PromptAnswer, Verdict
from flowedge.client import Client, Generation
from flowedge.client.base_client import OnWaiting
from flowedge.client.request import GenerateOptions
from flowedge.client.statistics import typed_statistics
from flowedge.core.errors import CapacityError

LEAST_S = 0.01  # of the time for an answer that a pause has used up; the error then is that of the deadline


@dataclass(eq=False)
class Questioner:
    """A prompt that is asked of a draft node.

    Attributes:
        timeout_s: seconds for the answer, waits for room included.
        stop: no request is begun, or begun again, when it is set.
        on_waiting: is told of the request's place in the queue (see Client.generate).
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
        generation = self.generation
        assert generation is not None, "the prompt has been asked"
        first = self.answered if self._first_token is None else self._first_token
        return PromptAnswer(
            prompt=self.prompt,
            prompt_ids=generation.prompt_ids,
            token_ids=generation.token_ids,
            text=generation.text,
            seed=generation.seed or 0,
            finish_reason=generation.finish_reason or "",
            statistics=typed_statistics(generation.statistics),
            client_ttft_s=first - self.asked,
            verdict=verdict,
            asked=self.asked,
            answered=self.answered,
        )

    def _try(self, left_s: float) -> Generator[str, None, float | None]:
        """Yield the text; return the seconds after which to ask again, None when the answer is complete."""
        with self.client.generate(
            self.prompt, timeout_s=left_s, options=self.options, on_waiting=self.on_waiting
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
