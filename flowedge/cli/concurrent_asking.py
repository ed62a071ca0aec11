"""Several prompts asked at once, whose answers are read in the order of the prompts."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from flowedge.cli.asking import Questioner
from flowedge.core.errors import DeadlineError

JOIN_S = 5.0  # for a thread to end whose request was cancelled
MARGIN_S = 10.0  # beyond the time for an answer, after which its thread has given up by itself

Piece = str | BaseException | None
"""A part of the text, the error that ended the answer, or None at its end."""


class ConcurrentQuestions(AbstractContextManager["ConcurrentQuestions"]):
    """Asks prompts in threads, so many at once; what still runs at the end of the context is cancelled."""

    def __init__(self, askings: Sequence[Questioner], at_once: int) -> None:
        self._askings = list(askings)
        self._pieces: list[queue.SimpleQueue[Piece]] = [queue.SimpleQueue() for _ in askings]
        self._left = deque(range(len(askings)))
        self._threads = [
            threading.Thread(target=self._ask_all, name="flowedge-asking", daemon=True)
            for _ in range(min(at_once, len(askings)))
        ]

    def __enter__(self) -> ConcurrentQuestions:
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
