"""Requests to a draft node, checked before they go over the wire."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowedge.client.messages import ChatMessage, ToolOffer
from flowedge.core.errors import BadRequestError, DeviceError, DeviceLostError, FlowEdgeError, wrong_type
from flowedge.core.generate_options import MAX_TOKENS, GenerateOptions, is_integer, is_number
from flowedge.core.ids import check_request_id, new_request_id
from flowedge.core.plain_text import checked_utf8
from flowedge.network.device_state import DeviceState, state_of
from flowedge.v1 import generation_pb2 as pb

KEEP_ALIVE = pb.GenerateEvent(keep_alive=pb.KeepAlive())
RECOVERY_S = 60.0
_FIRST_TRY_S, _MOST_TRY_S = 0.1, 1.0  # pauses before the rest of an answer is asked for


def prompt_request(
    options: GenerateOptions,
    prompt: str | None,
    prompt_ids: Sequence[int] | None = None,
    request_id: str | None = None,
    *,
    text: str | None = None,
) -> pb.GenerateRequest:
    """Return the request for one prompt, given as a message, as token ids or as raw text.

    Args:
        request_id: drawn when it is None.

    Raises:
        BadRequestError: when not exactly one of prompt, prompt_ids and text is given, when it is empty
            or has the wrong type, or when a text is not valid UTF-8.
    """
    request = _request(options, request_id)
    if sum(each is not None for each in (prompt, prompt_ids, text)) != 1:
        raise BadRequestError("give either prompt or prompt_ids or text")
    if prompt is not None:
        checked = _checked_prompt("prompt", prompt)
        if options.system is None:
            request.prompt = checked
        else:
            messages = (ChatMessage(each["role"], each["content"]) for each in options.messages(checked))
            request.conversation.messages.extend(message.to_proto() for message in messages)
        return request
    if options.system is not None:
        raise BadRequestError(
            "a system message goes with a prompt, and prompt_ids and text are used unchanged"
        )
    if text is not None:
        request.text = _checked_prompt("text", text)
    if prompt_ids is not None:
        request.prompt_ids.ids.extend(_checked_token_ids(prompt_ids))
    return request


def chat_request(
    options: GenerateOptions,
    messages: Sequence[ChatMessage],
    offer: ToolOffer,
    request_id: str | None,
    *,
    parse: bool,
) -> pb.GenerateRequest:
    """Return the request for the next message of a conversation.

    Args:
        request_id: drawn when it is None.
        parse: whether reasoning and tool calls are separated from the answer's text.

    Raises:
        BadRequestError: when there are two system messages, or a part cannot be sent.
    """
    request = _request(options, request_id)
    if options.system is not None:
        if any(message.role == "system" for message in messages):
            raise BadRequestError("the conversation has a system message; leave out the option system")
        messages = [ChatMessage("system", options.system), *messages]
    request.conversation.CopyFrom(offer.conversation(messages))
    request.parse_answer = parse
    return request


def _request(options: GenerateOptions, request_id: str | None) -> pb.GenerateRequest:
    """Return a request with these options and without a prompt."""
    if request_id is not None and not isinstance(request_id, str):
        raise wrong_type("request_id", request_id, "text")
    return pb.GenerateRequest(
        request_id=new_request_id() if request_id is None else check_request_id(request_id),
        options=options.to_json(),
    )


def chosen_options(options: GenerateOptions | None, arguments: Mapping[str, Any]) -> GenerateOptions:
    """Return options in which `arguments` replace single fields; the defaults if `options` is None.

    Raises:
        BadRequestError: when an argument is no option, has the wrong type or is out of range.
    """
    base = GenerateOptions() if options is None else options
    if not isinstance(base, GenerateOptions):
        raise wrong_type("options", options, "GenerateOptions")
    return base.changed(**arguments)


def checked_seconds(name: str, seconds: float) -> float:
    """Return a number of seconds as it is; `name` is the argument that gives the number.

    Raises:
        BadRequestError: when it is no number above 0.
    """
    if not is_number(seconds):
        raise wrong_type(name, seconds, "a number of seconds")
    if not 0 < seconds < float("inf"):
        raise BadRequestError(f"{name} is {seconds}; it must be finite and above 0")
    return seconds


def _checked_prompt(name: str, prompt: str) -> str:
    if not isinstance(prompt, str):
        raise wrong_type(name, prompt, "text; give token ids as prompt_ids")
    if not (prompt if name == "text" else prompt.strip()):
        raise BadRequestError(f"the {name} is empty")
    return checked_utf8(prompt, f"the {name}")


def _checked_token_ids(token_ids: Sequence[int]) -> list[int]:
    expected = "one or more token ids, each an integer of 0 or more"
    if isinstance(token_ids, str | bytes):
        raise wrong_type("prompt_ids", token_ids, expected)
    try:
        found = list(token_ids)
    except TypeError as error:
        raise wrong_type("prompt_ids", token_ids, expected) from error
    if not found:
        raise BadRequestError(f"prompt_ids is empty; it must be {expected}")
    for place, token in enumerate(found):
        if not is_integer(token):
            raise wrong_type(f"prompt_ids[{place}]", token, "an integer")
        if not 0 <= token <= MAX_TOKENS:
            raise BadRequestError(f"prompt_ids[{place}] is {token}; it must be from 0 to {MAX_TOKENS}")
    return [int(token) for token in found]


@dataclass(frozen=True)
class Recovery:
    """That a device was lost under an answer, which waits to go on; as text, in words.

    Attributes:
        device: its name, or its address.
        state: the word for its state, such as "frozen" (docs/reliability.md); "lost" until that is known.
        reason: how it was lost, and what its state means.
        expected_s: seconds after which the answer is expected to go on; None where nobody knows.
    """

    device: str
    state: str
    reason: str
    expected_s: float | None = None

    @classmethod
    def from_proto(cls, told: pb.Recovering) -> Recovery:
        """Read what a draft node tells."""
        return cls(told.device, told.state or DeviceState.LOST.value, told.reason, told.expected_s or None)

    def __str__(self) -> str:
        return f"device {self.device}: {self.reason}" if self.device else self.reason


class RestOfAnswer:
    """Asks for the rest of an answer whose stream was broken off.

    This side knows the seed and the tokens that have come. Draws depend on these alone, so any draft node
    that answers as the first did goes on with the very tokens that would have come.
    """

    def __init__(self, started: pb.Started) -> None:
        self._started = started
        self._tokens: list[int] = []
        self._moved = time.monotonic()
        self._tries = 0  # since then
        self._begins_again = False  # whether what announces the answer is to come once more

    def take(self, event: pb.GenerateEvent) -> pb.GenerateEvent:
        """Take note of an event, and return what a reader of the whole answer is told."""
        body = event.WhichOneof("body")
        if body == "chunk":
            self._tokens += event.chunk.token_ids
            self._moved, self._tries = time.monotonic(), 0
        if not self._begins_again or body not in ("started", "waiting"):
            return event
        self._begins_again = body != "started"
        return KEEP_ALIVE

    def ask(self, request: pb.GenerateRequest) -> None:
        """Have a request ask for the rest."""
        self._begins_again = True
        request.answers_as = self._started.answers_as
        request.answered[:] = self._tokens
        options = json.loads(request.options or "{}")
        request.options = json.dumps({**options, "seed": self._started.seed})

    def pause_s(self, recovery_s: float) -> float | None:
        """Return the seconds to wait before the next try; None if nothing has come for `recovery_s`."""
        if time.monotonic() - self._moved > recovery_s:
            return None
        self._tries += 1
        pause_s: float = min(_FIRST_TRY_S * 2.0 ** min(self._tries - 1, 8), _MOST_TRY_S)
        return pause_s * random.uniform(0.5, 1.0)

    @staticmethod
    def recovering(error: FlowEdgeError) -> pb.GenerateEvent:
        """Return the event that tells a reader of a break."""
        device = error.device if isinstance(error, DeviceError) else ""
        reason = error.reason if isinstance(error, DeviceError) else str(error)
        state = state_of(error if isinstance(error, DeviceLostError) else None, None)
        return pb.GenerateEvent(recovering=pb.Recovering(device=device, reason=reason, state=state))
