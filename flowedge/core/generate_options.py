"""The options of a request to generate.

Each is declared here once, with its type, range, default and meaning. The client's arguments, the options of
the command line, the bodies of HTTP requests and the table of docs/options.md follow from the declarations.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from flowedge.core.errors import BadRequestError, wrong_type
from flowedge.core.grammar import Grammar
from flowedge.core.plain_text import checked_utf8
from flowedge.core.request import DEFAULT_PRIORITY, DEFAULT_STRATEGY, Noise, Priority, check_stop
from flowedge.core.sampling import (
    MAX_BIAS,
    MAX_LIKELIEST,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MIN_REPETITION_PENALTY,
    SamplingParams,
)
from flowedge.core.settings_group import types_of

T = TypeVar("T")
Options = TypeVar("Options", bound="GenerateOptions")
Method = TypeVar("Method", bound=Callable[..., Any])

MAX_TOKENS = 2**31 - 1
GREEDY: Mapping[str, float] = {"temperature": 0.0, "top_p": 1.0, "top_k": 0}
"""How tokens are drawn if neither a request nor the model says otherwise."""
MAX_NAME = 256  # characters of the name of a strategy, or of an option of it
MAX_STRATEGY_OPTIONS = 1024


def option(
    default: T,
    description: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    is_sent: bool = True,
) -> T:
    """Declare an option.

    Args:
        least, above, most: bounds of a number; `above` itself is not allowed.
        is_sent: whether the draft node is told of it as an option.
    """
    metadata = {"description": description, "least": least, "above": above, "most": most, "is_sent": is_sent}
    if isinstance(default, dict):
        return cast(T, dataclasses.field(default_factory=dict, metadata=metadata))
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class GenerateOptions:
    """How to answer a prompt; the prompt itself comes with each call.

    Raises:
        BadRequestError: when a value has the wrong type or is out of range; the error names the option.
    """

    strategy: str = option(
        DEFAULT_STRATEGY,
        "auto, or a method to compare with: autoregressive, naive_pp, pruned_pp, flowspec_no_sbd, "
        "flowspec_paper, flowspec, pipedec, specpipe, specpipe_db, pipeinfer, pipespec, pipespec_sync.",
    )
    max_new_tokens: int = option(256, "Maximum number of tokens in an answer.", least=1, most=MAX_TOKENS)
    temperature: float | None = option(
        None,
        "Sampling temperature; 0 always picks the most likely token. Default: the model's own, else 0.",
        least=0,
    )
    top_p: float | None = option(
        None,
        "Probability mass to sample from; 1 keeps all tokens. Default: the model's own, else 1.",
        above=0,
        most=1,
    )
    top_k: int | None = option(
        None,
        "Number of most likely tokens to sample from; 0 keeps all tokens. Default: the model's own, else 0.",
        least=0,
        most=MAX_TOKENS,
    )
    seed: int | None = option(None, "Seed of the sampling. Default: a random seed for each answer.")
    stop: Sequence[str] = option((), "Text before which an answer ends. Repeat the option for several.")
    strategy_options: Mapping[str, float] = option({}, "Options of the strategy, such as tree_nodes.")
    noise: Noise = option(
        "shared",
        "What drafts are ranked by above temperature 0: their probability alone (plain), or also "
        "the noise of the sampling (shared). The output is the same.",
    )
    priority: Priority = option(
        DEFAULT_PRIORITY, "Which request comes first if several wait for room at the draft node."
    )
    ignore_eos: bool = option(False, "Go on behind the model's end token.")
    system: str | None = option(
        None, "System message, for models whose chat template has one.", is_sent=False
    )
    presence_penalty: float = option(
        0.0, "Subtracted from the logit of each token of the answer.", least=-MAX_PENALTY, most=MAX_PENALTY
    )
    frequency_penalty: float = option(
        0.0,
        "Subtracted from a token's logit for each time that the token is in the answer.",
        least=-MAX_PENALTY,
        most=MAX_PENALTY,
    )
    logit_bias: Mapping[int, float] = option({}, "Added to the logits of tokens, from -100 to 100.")
    logprobs: int | None = option(
        None,
        "Give the log-probability of each token, and of so many likeliest tokens.",
        least=0,
        most=MAX_LIKELIEST,
    )
    grammar: Grammar | None = option(None, "What the answer must be.")
    repetition_penalty: float = option(
        1.0,
        "Divides positive logits of tokens of the prompt and answer, multiplies negative ones; 1 is off.",
        least=MIN_REPETITION_PENALTY,
        most=MAX_REPETITION_PENALTY,
    )
    min_p: float = option(
        0.0,
        "Probability, as a share of the likeliest token's, below which a token is not sampled.",
        least=0,
        most=1,
    )
    min_tokens: int = option(
        0, "Number of tokens before which an answer does not end by itself.", least=0, most=MAX_TOKENS
    )
    echo: bool = option(False, "Give the text of the prompt as well.")
    fit_context: bool = option(False, "Lower max_new_tokens to what the context has room for.")
    tenant: str = option(
        "", "Whose earlier answers drafts may be looked up in, where a pipeline keeps them (answer_store)."
    )

    def __post_init__(self) -> None:
        types = option_types(cast(Hashable, type(self)))
        for each in dataclasses.fields(self):
            _check_value(each, types[each.name], getattr(self, each.name))
        SamplingParams(**self.drawing(), seed=self.seed or 0)
        _check_name("strategy", self.strategy)
        _check_name("tenant", self.tenant)
        if len(self.strategy_options) > MAX_STRATEGY_OPTIONS:
            count = len(self.strategy_options)
            raise BadRequestError(
                f"strategy_options has {count} entries; at most {MAX_STRATEGY_OPTIONS} are allowed"
            )
        for name in self.strategy_options:
            _check_name("an option of the strategy", name)
        for token, bias in self.logit_bias.items():
            _check_between("a token of logit_bias", token, 0, MAX_TOKENS)
            _check_between(f"logit_bias[{token}]", bias, -MAX_BIAS, MAX_BIAS)
        check_stop(self.stop)
        for number, text in enumerate(self.stop, 1):
            checked_utf8(text, f"stop string {number}")
        if self.system is not None:
            if not self.system.strip():
                raise BadRequestError("the system message is empty")
            checked_utf8(self.system, "the system message")

    def drawing(self) -> dict[str, Any]:
        """Return temperature, top_p and top_k; what was left open takes the most likely token."""
        chosen = {name: getattr(self, name) for name in GREEDY}
        return {name: GREEDY[name] if value is None else value for name, value in chosen.items()}

    def with_sampling(self: Options, own: Mapping[str, float]) -> Options:
        """Return the options with what they leave open of temperature, top_p and top_k.

        Args:
            own: what the model's generation config says of them (see generation_sampling).
        """
        left = {name: own.get(name, GREEDY[name]) for name in GREEDY if getattr(self, name) is None}
        return self.changed(**left)

    def messages(self, prompt: str) -> list[dict[str, str]]:
        """Return the conversation that a prompt begins."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": prompt}]

    def changed(self: Options, **arguments: Any) -> Options:
        """Return options in which `arguments` replace single ones.

        Raises:
            BadRequestError: when an argument is no option, has the wrong type or is out of range.
        """
        known = [each.name for each in dataclasses.fields(self)]
        for name in arguments:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(known)}"
                raise BadRequestError(f"there is no option {name:.80}; {hint}")
        return dataclasses.replace(self, **arguments)

    def to_json(self) -> str:
        """Return the options as text for the draft node."""
        sent = (each.name for each in dataclasses.fields(self) if each.metadata["is_sent"])
        return json.dumps({name: _plain(getattr(self, name)) for name in sent}, ensure_ascii=False)

    @classmethod
    def from_json(cls: type[Options], text: str, **absent: Any) -> Options:
        """Return the options that a client has sent; `absent` are those that it need not send.

        Raises:
            BadRequestError: when the text is no JSON object, or an option is unknown or wrong.
        """
        try:
            given = json.loads(text or "{}")
        except (ValueError, RecursionError) as error:
            raise BadRequestError(f"the options are no JSON: {error}") from error
        if not isinstance(given, dict):
            raise wrong_type("options", given, "a JSON object")
        if isinstance(given.get("logit_bias"), dict):
            biases = given["logit_bias"].items()
            given["logit_bias"] = {int(key) if key[:10].isdecimal() else key: bias for key, bias in biases}
        if isinstance(given.get("grammar"), dict):
            given["grammar"] = Grammar.from_plain(given["grammar"])
        values = {name: tuple(each) if isinstance(each, list) else each for name, each in given.items()}
        return cls().changed(**absent | values)


def with_options_shown(method: Method) -> Method:
    """Have help and completion show each option of GenerateOptions where a method takes **arguments.

    Its signature has them with their types and defaults, its docstring with their ranges and meanings.
    """
    types, options = get_type_hints(GenerateOptions), dataclasses.fields(GenerateOptions)
    signature = inspect.signature(method)
    fixed = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    taken = {each.name for each in fixed}
    added = [each for each in options if each.name not in taken]
    own = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=_default(each), annotation=types[each.name]
        )
        for each in added
    ]
    method.__signature__ = signature.replace(parameters=[*fixed, *own])  # type: ignore[attr-defined]
    lines = [f"    {each.name}{_range(each)}: {each.metadata['description']}" for each in added]
    text = "\n".join(["Options, of GenerateOptions:", *lines])
    method.__doc__ = f"{inspect.cleandoc(method.__doc__ or '')}\n\n{text}\n"
    return method


def _default(declared: dataclasses.Field[Any]) -> Any:
    return {} if declared.default is dataclasses.MISSING else declared.default


def _range(declared: dataclasses.Field[Any]) -> str:
    """Return the bounds of an option for its description, such as " (above 0, at most 1)"."""
    words = {"least": "at least", "above": "above", "most": "at most"}
    bounds = [
        f"{words[name]} {_short(declared.metadata[name])}"
        for name in words
        if declared.metadata[name] is not None and declared.metadata[name] != MAX_TOKENS
    ]
    return f" ({', '.join(bounds)})" if bounds else ""


@functools.cache
def option_types(options: Hashable) -> Mapping[str, tuple[Any, ...]]:
    """Return the types that each option may have (see types_of)."""
    return {name: types_of(hint) for name, hint in get_type_hints(cast(type[Any], options)).items()}


def _plain(value: Any) -> Any:
    """Return the value of an option as JSON has it; numbers of numpy become Python's."""
    if isinstance(value, Grammar):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, bool | str | NoneType):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else [_plain(each) for each in value]


def is_integer(value: object) -> bool:
    """Return whether a value is a whole number, of Python or of numpy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether a value is a real number, of Python or of numpy."""
    return isinstance(value, Real) and not isinstance(value, bool)


_KINDS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    str: (lambda value: isinstance(value, str), "text"),
    int: (is_integer, "an integer"),
    float: (is_number, "a number"),
    bool: (lambda value: isinstance(value, bool), "True or False"),
    NoneType: (lambda value: value is None, "None"),
    Grammar: (lambda value: isinstance(value, Grammar), "a Grammar"),
    Sequence[str]: (
        lambda value: isinstance(value, Sequence) and not isinstance(value, str | bytes) and _are(str, value),
        "a list of strings",
    ),
    Mapping[str, float]: (
        lambda value: isinstance(value, Mapping) and _are(str, value) and _are(float, value.values()),
        "a dict of numbers by their names",
    ),
    Mapping[int, float]: (
        lambda value: isinstance(value, Mapping) and _are(int, value) and _are(float, value.values()),
        "a dict of numbers by token ids",
    ),
}
"""For each type of an option, whether a value has it, and the type in words."""


def _are(kind: Any, values: Any) -> bool:
    return all(map(_KINDS[kind][0], values))


def _check_value(declared: dataclasses.Field[Any], types: Sequence[Any], value: Any) -> None:
    """Raise BadRequestError if the value of an option has none of its types, or is out of its range."""
    kinds = [_KINDS[str if get_origin(each) is Literal else each] for each in types]
    if not any(is_right(value) for is_right, _ in kinds):
        raise wrong_type(declared.name, value, " or ".join(expected for _, expected in kinds))
    words = [word for each in types if get_origin(each) is Literal for word in get_args(each)]
    if words and value not in words:
        known = ", ".join(words[:-1]) + f" or {words[-1]}"
        raise BadRequestError(f"{declared.name} is {value!r:.200}; it must be {known}")
    least, most = declared.metadata["least"], declared.metadata["most"]
    if value is not None and None not in (least, most):
        _check_between(declared.name, value, least, most)
    above = declared.metadata["above"]
    if value is not None and None not in (above, most) and not above < value <= most:
        raise BadRequestError(
            f"{declared.name} is {value}; it must be above {_short(above)} and at most {_short(most)}"
        )


def _check_name(what: str, name: str) -> None:
    if len(checked_utf8(name, what)) > MAX_NAME:
        raise BadRequestError(
            f"{what} has {len(name)} characters; at most {MAX_NAME} are allowed: {name[:40]!r}..."
        )


def _check_between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise BadRequestError(f"{name} is {value}; it must be from {_short(least)} to {_short(most)}")


def _short(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"
