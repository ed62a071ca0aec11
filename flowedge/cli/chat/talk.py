"""Messages of the user, the answers as they come, and the line below an answer."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flowedge.cli.chat.busy import BusyIndicator
from flowedge.cli.output import warn, write_answer, write_control
from flowedge.cli.prompt_answer import PromptAnswer
from flowedge.cli.screens.answer_screen import AnswerScreen
from flowedge.client import Client, Conversation, Device, GenerateOptions, Generation, Recovery
from flowedge.core.errors import BadRequestError, CapacityError, FlowEdgeError

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_INTERVAL_S = 0.1  # between two changes of the line below an answer
_LINE_FEED = "\x1bD\x1bM"  # a line down, which scrolls at the bottom, and up again
_KEEP, _BACK, _BELOW, _CLEAR = "\x1b7", "\x1b8", "\x1b[B\r", "\x1b[2K"


@dataclass
class Talk:
    """A conversation whose answers are written to standard output.

    Attributes:
        options: of the next question; device: the draft node, as it described itself at the beginning.
        last: the last answer that was complete.
        failures: number of messages that were not answered.
    """

    client: Client
    conversation: Conversation
    screen: AnswerScreen
    live: LiveLine
    options: GenerateOptions
    device: Device
    last: PromptAnswer | None = None
    failures: int = 0
    _asked: float = field(default=0.0, init=False)
    _answers: int = field(default=0, init=False)  # written so far

    def say(self, message: str) -> None:
        """Send a message of the user and write the answer; an error is shown, and the conversation goes on.

        KeyboardInterrupt ends the answer, of which the conversation keeps what has come.
        """
        self._asked = time.monotonic()
        answer: Generation | None = None
        begun = _Begun()
        try:
            self.live.show("thinking")
            answer = self.conversation.ask(
                message,
                options=self.options,
                on_waiting=self._show_queue_position,
                on_recovering=self._show_recovering,
            )
            if self.live.shown:
                with BusyIndicator(self.client).running() as busy:
                    self._write(answer, begun, busy)
            else:
                self._write(answer, begun)
        except KeyboardInterrupt:
            if answer is not None:
                answer.close()
            self._end(begun)
            warn("stopped")
        except FlowEdgeError as error:
            self._end(begun)
            self.failures += 1
            hint = "; /reset begins a new conversation" if isinstance(error, CapacityError) else ""
            if begun.any and not hint:
                hint = ". What has come is kept: ask to go on, once the pipeline is set up again"
            warn(f"flowedge: {error}{hint}")
        else:
            self._end(begun)
            self.last = PromptAnswer.of(message, answer, self._asked, time.monotonic())
            if self.live.shown:
                self.screen.show_line(self.last)

    def statistics(self) -> None:
        """Show the statistics of the last answer.

        Raises:
            BadRequestError: when no answer was complete.
        """
        if self.last is None:
            raise BadRequestError("there is no complete answer yet")
        self.screen.show_answer(self.last, several=False)

    def _write(self, answer: Generation, begun: _Begun, busy: BusyIndicator | None = None) -> None:
        for chunk in answer:
            if chunk.text or chunk.reasoning:
                self._make_line(begun)
            if chunk.reasoning and self.live.shown:  # a program that reads the answers wants them alone
                write_answer_dim(chunk.reasoning)
                begun.reasoning = begun.any = True
            if chunk.text:
                if begun.reasoning:
                    write_answer("\n\n")
                    begun.reasoning = False
                write_answer(chunk.text)
                begun.any = True
            begun.steps += bool(chunk.token_ids)
            if busy is not None:
                self.live.show(self._figures(answer, begun.steps, *busy.figures()))

    def _make_line(self, begun: _Begun) -> None:
        """Clear the place of the next text; answers are set apart where nothing else stands between them."""
        self.live.clear()
        if self._answers and not begun.any and not self.live.shown:
            write_answer("\n")

    def _end(self, begun: _Begun) -> None:
        self.live.clear()
        if begun.any:
            self._answers += 1
            write_answer("\n")

    def _figures(self, answer: Generation, steps: int, per_segment: float, devices: str) -> str:
        tokens, seconds = len(answer.token_ids), time.monotonic() - self._asked - answer.queue_s
        rate = f", {tokens / seconds:.1f} tokens/s" if seconds > 0 else ""
        each = f"{per_segment:.1f} a segment" if per_segment else f"{tokens / max(steps, 1):.1f} a step"
        return "   ".join(filter(None, (f"{tokens} tokens{rate}, {each}", devices, "Ctrl-C stops")))

    def _show_queue_position(self, position: int, expected_s: float) -> None:
        if self.live.shown:
            self.live.show(f"waiting for room: place {position}, about {expected_s:.0f} s")
        else:
            self.screen.show_queue_position(position, expected_s)

    def _show_recovering(self, lost: Recovery | None) -> None:
        if self.live.shown:
            self.live.show(f"{lost}; the answer waits to go on" if lost else "the answer goes on")
        else:
            self.screen.show_recovering(lost)


@dataclass
class _Begun:
    """What was written of an answer so far."""

    any: bool = False
    reasoning: bool = False  # and no text since
    steps: int = 0


def write_answer_dim(text: str) -> None:
    """Write a thought of the model to a terminal."""
    write_control(_DIM)
    write_answer(text)
    write_control(_PLAIN)


class LiveLine:
    """A line that stays below the text that a terminal is given; nothing where there is no terminal.

    Attributes:
        shown: whether there is one.
    """

    def __init__(self, write: Callable[[str], None], *, shown: bool) -> None:
        """write: of the terminal that gets the text."""
        self.shown = shown
        self._write = write
        self._last = 0.0
        self._drawn = False

    @classmethod
    def on_terminal(cls) -> LiveLine:
        """Return the line of standard output, if that is a terminal."""
        return cls(write_control, shown=sys.stdout.isatty() and sys.stdin.isatty())

    def show(self, text: str) -> None:
        """Replace the line, at most ten times a second."""
        now = time.monotonic()
        if not self.shown or (self._drawn and now - self._last < _INTERVAL_S):
            return
        self._last, self._drawn = now, True
        cut = text[: max(shutil.get_terminal_size().columns - 1, 1)]
        self._write(f"{_LINE_FEED}{_KEEP}{_BELOW}{_CLEAR}{_DIM}{cut}{_PLAIN}{_BACK}")

    def clear(self) -> None:
        """Remove the line, before more text comes or the answer ends."""
        if self._drawn:
            self._drawn = False
            self._write(f"{_KEEP}{_BELOW}{_CLEAR}{_BACK}")
