"""Options of a generation, checked before they go over the wire."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, TypedDict

from flowedge.core.errors import BadRequestError
from flowedge.core.request import (
    DEFAULT_PRIORITY,
    DEFAULT_STRATEGY,
    Noise,
    Priority,
    check_stop,
    parse_noise,
    parse_priority,
)
from flowedge.core.request_id import check_request_id, new_request_id
from flowedge.core.sampling import SamplingParams
from flowedge.core.utf8 import checked_utf8
from flowedge.v1 import generation_pb2 as pb

DEFAULT_MAX_NEW_TOKENS = 256
_TOKEN_LIMIT = 2**31


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

    def __post_init__(self) -> None:
        for name, (is_right, expected) in _TYPES.items():
            value = getattr(self, name)
            if not is_right(value):
                raise _wrong_type(name, value, expected)
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
        check_stop(self.stop)
        for number, text in enumerate(self.stop, 1):
            checked_utf8(text, f"stop string {number}")
        if self.system is not None:
            if not self.system.strip():
                raise BadRequestError("the system message is empty")
            checked_utf8(self.system, "the system message")

    def messages(self, prompt: str) -> list[dict[str, str]]:
        """Return the conversation that a prompt begins."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": prompt}]

    def to_request(
        self, prompt: str | None, prompt_ids: Sequence[int] | None, request_id: str | None = None
    ) -> pb.GenerateRequest:
        """Return the request for one prompt, given as text or as token ids.

        Args:
            request_id: drawn when it is None.

        Raises:
            BadRequestError: when prompt and prompt_ids are both given or both missing, when either is empty
                or has the wrong type, or when the prompt is not valid UTF-8.
        """
        if request_id is not None and not isinstance(request_id, str):
            raise _wrong_type("request_id", request_id, "text")
        options = asdict(self)
        del options["system"]
        request = pb.GenerateRequest(
            request_id=new_request_id() if request_id is None else check_request_id(request_id),
            **options,
        )
        if (prompt is None) == (prompt_ids is None):
            raise BadRequestError("give either prompt or prompt_ids")
        if prompt is not None:
            checked = _checked_prompt(prompt)
            if self.system is None:
                request.prompt = checked
            else:
                messages = (pb.ChatMessage(**each) for each in self.messages(checked))
                request.conversation.messages.extend(messages)
        if prompt_ids is not None:
            if self.system is not None:
                raise BadRequestError(
                    "a system message goes with a prompt, and prompt_ids are used unchanged"
                )
            request.prompt_ids.ids.extend(_checked_token_ids(prompt_ids))
        return request


def chosen_options(options: GenerateOptions | None, arguments: Mapping[str, Any]) -> GenerateOptions:
    """Return options in which `arguments` replace single fields; the defaults if `options` is None.

    Raises:
        BadRequestError: when an argument is no option, has the wrong type or is out of range.
    """
    base = GenerateOptions() if options is None else options
    if not isinstance(base, GenerateOptions):
        raise _wrong_type("options", options, "GenerateOptions")
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
    if not _is_number(seconds):
        raise _wrong_type(name, seconds, "a number of seconds")
    if not 0 < seconds < float("inf"):
        raise BadRequestError(f"{name} is {seconds}; it must be finite and above 0")
    return seconds


def _checked_prompt(prompt: str) -> str:
    if not isinstance(prompt, str):
        raise _wrong_type("prompt", prompt, "text; give token ids as prompt_ids")
    if not prompt.strip():
        raise BadRequestError("the prompt is empty")
    return checked_utf8(prompt, "the prompt")


def _checked_token_ids(token_ids: Sequence[int]) -> list[int]:
    expected = "one or more token ids, each an integer of 0 or more"
    if isinstance(token_ids, str | bytes):
        raise _wrong_type("prompt_ids", token_ids, expected)
    try:
        found = list(token_ids)
    except TypeError as error:
        raise _wrong_type("prompt_ids", token_ids, expected) from error
    if not found:
        raise BadRequestError(f"prompt_ids is empty; it must be {expected}")
    for place, token in enumerate(found):
        if not _is_integer(token):
            raise _wrong_type(f"prompt_ids[{place}]", token, "an integer")
        if not 0 <= token < _TOKEN_LIMIT:
            raise BadRequestError(f"prompt_ids[{place}] is {token}; it must be from 0 to {_TOKEN_LIMIT - 1}")
    return [int(token) for token in found]


def _wrong_type(name: str, value: object, expected: str) -> BadRequestError:
    return BadRequestError(f"{name} is {value!r:.200} ({type(value).__name__}); it must be {expected}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _are_texts(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(map(_is_text, value))


def _are_numbers_by_name(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_is_text, value)) and all(map(_is_number, value.values()))


_TYPES: dict[str, tuple[Callable[[object], bool], str]] = {
    "strategy": (_is_text, "text"),
    "max_new_tokens": (_is_integer, "an integer"),
    "temperature": (_is_number, "a number"),
    "top_p": (_is_number, "a number"),
    "top_k": (_is_integer, "an integer"),
    "seed": (lambda value: value is None or _is_integer(value), "an integer or None"),
    "stop": (_are_texts, "a list of strings"),
    "strategy_options": (_are_numbers_by_name, "a dict of numbers by their names"),
    "noise": (_is_text, "text"),
    "priority": (_is_text, "text"),
    "ignore_eos": (lambda value: isinstance(value, bool), "True or False"),
    "system": (lambda value: value is None or _is_text(value), "text or None"),
}
"""For each option, whether a value has its type, and the type in words."""
