"""Options of a generation, checked before they go over the wire."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict

from flowedge.client.chat.grammar import Grammar
from flowedge.client.chat.messages import ChatMessage
from flowedge.client.chat.tools import ToolOffer
from flowedge.client.chat.values import (
    are_numbers_by_name,
    are_numbers_by_token,
    are_texts,
    is_flag,
    is_integer,
    is_number,
    is_text,
    wrong_type,
)
from flowedge.core.errors import BadRequestError
from flowedge.core.ids import check_request_id, new_request_id
from flowedge.core.plain_text import checked_utf8
from flowedge.core.request import (
    DEFAULT_PRIORITY,
    DEFAULT_STRATEGY,
    Noise,
    Priority,
    check_stop,
    parse_noise,
    parse_priority,
)
from flowedge.core.sampling import SamplingParams
from flowedge.v1 import generation_pb2 as pb

DEFAULT_MAX_NEW_TOKENS = 256
MAX_LOGPROBS = 20
_TOKEN_LIMIT = 2**31
_MOST_PENALTY, _MOST_BIAS = 2.0, 100.0


class GenerateArguments(TypedDict, total=False):
    """The fields of GenerateOptions, as keyword arguments."""

    strategy: str
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: Sequence[str]
    strategy_options: Mapping[str, float]
    noise: Noise
    priority: Priority
    ignore_eos: bool
    system: str | None
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    logprobs: int | None
    grammar: Grammar | None
    echo: bool
    fit_context: bool


@dataclass(frozen=True)
class GenerateOptions:
    """How to answer a prompt; the prompt itself comes with each call.

    Raises:
        BadRequestError: when a value has the wrong type or is out of range; the error names the option.
    """

    strategy: str = DEFAULT_STRATEGY
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    temperature: float = 0.0  # 0 takes the most likely token
    top_p: float = 1.0  # 1 keeps all tokens
    top_k: int = 0  # 0 keeps all tokens
    seed: int | None = None  # None: the draft node draws a seed and reports it
    stop: Sequence[str] = ()  # strings at which the text ends; they are not part of it
    strategy_options: Mapping[str, float] = field(default_factory=dict)
    noise: Noise = "shared"  # what drafts are ranked by above temperature 0; see docs/drafters.md
    priority: Priority = DEFAULT_PRIORITY  # interactive, normal or batch: which waiting request comes first
    ignore_eos: bool = False
    system: str | None = None  # a system message before the prompt, for models whose chat template takes one
    presence_penalty: float = 0.0  # subtracted from the logit of each token that is in the answer, -2 to 2
    frequency_penalty: float = 0.0  # the same for each time that the token is in the answer
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # added to tokens' logits, -100 to 100
    logprobs: int | None = None  # the log-probability of each token, and of so many likeliest tokens
    grammar: Grammar | None = None  # what the answer must be
    echo: bool = False  # whether the answer has the text of the prompt as well
    fit_context: bool = False  # lower max_new_tokens to what the context has room for

    def __post_init__(self) -> None:
        for name, (is_right, expected) in _TYPES.items():
            value = getattr(self, name)
            if not is_right(value):
                raise wrong_type(name, value, expected)
        SamplingParams(self.temperature, self.top_k, self.top_p, self.seed or 0)
        parse_noise(self.noise)
        parse_priority(self.priority)
        checked_utf8(self.strategy, "strategy")
        if not 1 <= self.max_new_tokens < _TOKEN_LIMIT:
            raise BadRequestError(
                f"max_new_tokens is {self.max_new_tokens}; it must be from 1 to {_TOKEN_LIMIT - 1}"
            )
        if self.top_k >= _TOKEN_LIMIT:
            raise BadRequestError(f"top_k is {self.top_k}; it must be below {_TOKEN_LIMIT}")
        self._check_scores()
        check_stop(self.stop)
        for number, text in enumerate(self.stop, 1):
            checked_utf8(text, f"stop string {number}")
        if self.system is not None:
            if not self.system.strip():
                raise BadRequestError("the system message is empty")
            checked_utf8(self.system, "the system message")

    def _check_scores(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            _check_between(name, getattr(self, name), -_MOST_PENALTY, _MOST_PENALTY)
        for token, bias in self.logit_bias.items():
            _check_between("a token of logit_bias", token, 0, _TOKEN_LIMIT - 1)
            _check_between(f"logit_bias[{token}]", bias, -_MOST_BIAS, _MOST_BIAS)
        if self.logprobs is not None:
            _check_between("logprobs", self.logprobs, 0, MAX_LOGPROBS)

    def messages(self, prompt: str) -> list[dict[str, str]]:
        """Return the conversation that a prompt begins."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": prompt}]

    def to_request(
        self,
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
        request = self._request(request_id)
        if sum(each is not None for each in (prompt, prompt_ids, text)) != 1:
            raise BadRequestError("give either prompt or prompt_ids or text")
        if prompt is not None:
            checked = _checked_prompt("prompt", prompt)
            if self.system is None:
                request.prompt = checked
            else:
                messages = (ChatMessage(each["role"], each["content"]) for each in self.messages(checked))
                request.conversation.messages.extend(message.to_proto() for message in messages)
            return request
        if self.system is not None:
            raise BadRequestError(
                "a system message goes with a prompt, and prompt_ids and text are used unchanged"
            )
        if text is not None:
            request.text = _checked_prompt("text", text)
        if prompt_ids is not None:
            request.prompt_ids.ids.extend(_checked_token_ids(prompt_ids))
        return request

    def to_chat_request(
        self, messages: Sequence[ChatMessage], offer: ToolOffer, request_id: str | None, *, parse: bool
    ) -> pb.GenerateRequest:
        """Return the request for the next message of a conversation.

        Args:
            request_id: drawn when it is None.
            parse: whether reasoning and tool calls are separated from the answer's text.

        Raises:
            BadRequestError: when there are two system messages, or a part cannot be sent.
        """
        request = self._request(request_id)
        if self.system is not None:
            if any(message.role == "system" for message in messages):
                raise BadRequestError("the conversation has a system message; leave out the option system")
            messages = [ChatMessage("system", self.system), *messages]
        request.conversation.CopyFrom(offer.conversation(messages))
        request.parse_answer = parse
        return request

    def _request(self, request_id: str | None) -> pb.GenerateRequest:
        """Return a request with these options and without a prompt."""
        if request_id is not None and not isinstance(request_id, str):
            raise wrong_type("request_id", request_id, "text")
        options = {each.name: getattr(self, each.name) for each in fields(self)}
        del options["system"]
        return pb.GenerateRequest(
            request_id=new_request_id() if request_id is None else check_request_id(request_id),
            **{**options, "grammar": None if self.grammar is None else self.grammar.to_proto()},
        )


def chosen_options(options: GenerateOptions | None, arguments: Mapping[str, Any]) -> GenerateOptions:
    """Return options in which `arguments` replace single fields; the defaults if `options` is None.

    Raises:
        BadRequestError: when an argument is no option, has the wrong type or is out of range.
    """
    base = GenerateOptions() if options is None else options
    if not isinstance(base, GenerateOptions):
        raise wrong_type("options", options, "GenerateOptions")
    known = [each.name for each in fields(GenerateOptions)]
    for name in arguments:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(known)}"
            raise BadRequestError(f"there is no option {name}; {hint}")
    return replace(base, **arguments)


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


def _check_between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise BadRequestError(f"{name} is {value}; it must be from {least:g} to {most:g}")


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
        if not 0 <= token < _TOKEN_LIMIT:
            raise BadRequestError(f"prompt_ids[{place}] is {token}; it must be from 0 to {_TOKEN_LIMIT - 1}")
    return [int(token) for token in found]


_TYPES: dict[str, tuple[Callable[[object], bool], str]] = {
    "strategy": (is_text, "text"),
    "max_new_tokens": (is_integer, "an integer"),
    "temperature": (is_number, "a number"),
    "top_p": (is_number, "a number"),
    "top_k": (is_integer, "an integer"),
    "seed": (lambda value: value is None or is_integer(value), "an integer or None"),
    "stop": (are_texts, "a list of strings"),
    "strategy_options": (are_numbers_by_name, "a dict of numbers by their names"),
    "noise": (is_text, "text"),
    "priority": (is_text, "text"),
    "ignore_eos": (is_flag, "True or False"),
    "system": (lambda value: value is None or is_text(value), "text or None"),
    "presence_penalty": (is_number, "a number"),
    "frequency_penalty": (is_number, "a number"),
    "logit_bias": (are_numbers_by_token, "a dict of numbers by token ids"),
    "logprobs": (lambda value: value is None or is_integer(value), "an integer or None"),
    "grammar": (lambda value: value is None or isinstance(value, Grammar), "a Grammar or None"),
    "echo": (is_flag, "True or False"),
    "fit_context": (is_flag, "True or False"),
}
"""For each option, whether a value has its type, and the type in words."""
