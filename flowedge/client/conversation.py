"""A conversation with a model: each question goes with all that was said before."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from flowedge.client.messages import ChatMessage, ToolCall, ToolOffer, checked_messages
from flowedge.client.transcript import CANCELLED, StreamedTranscript
from flowedge.core.errors import BadRequestError
from flowedge.device.files import expand_home

_MOST_BYTES = 64 << 20  # of a file

AnswerT = TypeVar("AnswerT", bound=StreamedTranscript)


class BaseConversation(Generic[AnswerT]):
    """The messages of a conversation, to which each answer is added when it is complete.

    The prompt of each question begins with that of the question before, so the devices compute only what is
    new. An answer that fails or is cancelled leaves the conversation as it was.

    Attributes:
        messages: what was said so far; `tools`: what the model may call, as dicts in OpenAI's form.
        keeps_partial: whether an answer that fails or is cancelled is kept, as far as it came.
    """

    def __init__(
        self,
        chat: Callable[..., AnswerT],
        *,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        keeps_partial: bool = False,
        **arguments: Any,
    ) -> None:
        """
        chat: of the client.
        system: a system message, for models whose chat template takes one.
        arguments: of `chat`, for each question.

        Raises:
            BadRequestError: when the system message is empty, or a tool is malformed.
        """
        ToolOffer(tools)
        self._chat = chat
        self._arguments = arguments
        self._running: weakref.ref[AnswerT] | None = None
        self.tools = list(tools)
        self.keeps_partial = keeps_partial
        self.messages: list[ChatMessage] = []
        if system is not None:
            self.set_system(system)

    @property
    def system(self) -> str | None:
        """The system message; None without one."""
        first = self.messages[0] if self.messages else None
        return first.content if first is not None and first.role == "system" else None

    def set_system(self, text: str | None) -> None:
        """Replace the system message; None removes it.

        Raises:
            BadRequestError: when the text is empty.
        """
        if text is not None and not (isinstance(text, str) and text.strip()):
            raise BadRequestError("the system message is empty; give None for no message")
        rest = self.messages[self.system is not None :]
        self.messages = rest if text is None else [ChatMessage("system", text), *rest]

    def reset(self) -> None:
        """Forget all messages but the system message."""
        self.messages = self.messages[: self.system is not None]

    def ask(self, text: str | None = None, **arguments: Any) -> AnswerT:
        """Start the answer to a message of the user, or to the results of tools; it is read as any answer.

        Args:
            text: None after `answer_tool`, when the model is to go on.
            arguments: of the client's `chat`, for this question.

        Raises what `chat` raises; BadRequestError also while an answer is still running.
        """
        running = None if self._running is None else self._running()
        if running is not None and running.running:
            raise BadRequestError("the last answer is still running; read it to its end, or close it")
        asked = self.messages if text is None else [*self.messages, ChatMessage("user", text)]
        answer = self._chat(asked, tools=self.tools, **{**self._arguments, **arguments})
        self._running = weakref.ref(answer)
        answer.on_end = lambda ended: self._ended(list(asked), ended)
        return answer

    def answer_tool(self, call: ToolCall, result: str | Mapping[str, Any] | Sequence[Any]) -> None:
        """Add the result of a tool that the last answer called; `ask()` has the model go on.

        Raises:
            BadRequestError: when the result is neither text nor JSON.
        """
        if not isinstance(result, str):
            try:
                result = json.dumps(result, ensure_ascii=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise BadRequestError(f"the result of {call.name} is no JSON: {error}") from error
        self.messages = [*self.messages, ChatMessage("tool", result, tool_call_id=call.id, name=call.name)]

    def save(self, path: str | Path) -> None:
        """Write the messages and tools to a file, as JSON in OpenAI's form.

        Raises:
            BadRequestError: when the file cannot be written, or a tool is no JSON.
        """
        content = {"messages": [message.to_dict() for message in self.messages], "tools": self.tools}
        try:
            text = json.dumps(content, indent=1, ensure_ascii=False)
            expand_home(str(path)).write_text(text + "\n", encoding="utf-8")
        except (OSError, ValueError, TypeError, RecursionError) as error:  # tools may be no JSON
            raise BadRequestError(f"{path} cannot be written: {error}") from error

    def load(self, path: str | Path) -> None:
        """Replace the messages and tools by those of a file that `save` has written.

        Raises:
            BadRequestError: when the file cannot be read, or holds no conversation.
        """
        self.messages, self.tools = read_conversation(path)

    def _ended(self, asked: list[ChatMessage], answer: StreamedTranscript) -> None:
        self._running = None
        complete = answer.finish_reason not in (None, CANCELLED)
        if complete or (self.keeps_partial and (answer.text or answer.reasoning)):
            self.messages = [*asked, answer.message]


def read_conversation(path: str | Path) -> tuple[list[ChatMessage], list[Any]]:
    """Return the messages and the tools of a file that `Conversation.save` has written.

    Raises:
        BadRequestError: when the file cannot be read, or holds no conversation.
    """
    try:
        with expand_home(str(path)).open("rb") as file:
            content = json.loads(file.read(_MOST_BYTES))
    except OSError as error:
        reason = error.strerror or error
        raise BadRequestError(
            f"{path} cannot be read: {reason}; name a file that a conversation was saved to"
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("messages"), list):
        raise BadRequestError(f"{path} holds no conversation; it must be a JSON object with messages")
    tools = content.get("tools") or []
    ToolOffer(tools)
    messages = checked_messages(content["messages"]) if content["messages"] else []
    return messages, list(tools)
