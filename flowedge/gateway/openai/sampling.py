"""Parameters that several of OpenAI's endpoints have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from flowedge.core.generate_options import MAX_TOKENS
from flowedge.core.sampling import MAX_BIAS, MAX_BIASES
from flowedge.gateway.answers.body import (
    Arguments,
    BodyObject,
    RequestBody,
    Stop,
    refused_value,
    shared,
    shared_options,
)

ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def template_values(effort: ReasoningEffort | None) -> dict[str, Any]:
    """Return the values for an effort: templates read one of the two, or neither.

    Templates of Qwen3 and SmolLM3 read `enable_thinking`, those of gpt-oss `reasoning_effort`.
    """
    if effort is None:
        return {}
    return {"enable_thinking": effort != "none", "reasoning_effort": effort}


MAX_CHOICES = 64  # answers of one request


def _few_biases(given: Any) -> Any:
    if isinstance(given, dict) and len(given) > MAX_BIASES:
        raise ValueError(f"it has {len(given)} tokens; at most {MAX_BIASES} are taken")
    return given


TokenLimit = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]
Biases = Annotated[dict[str, Bias], BeforeValidator(_few_biases)]


class StreamOptions(BodyObject):
    """Options of a stream.

    Attributes:
        continuous_usage_stats: an extension: whether every chunk has the usage so far.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # nothing is obfuscated


class DrawingBody(RequestBody):
    """What all requests for answers have: how tokens are drawn.

    Extensions have the names that other servers give them: `top_k`, of which 0 and -1 keep all tokens,
    `min_p`, `repetition_penalty`, `min_tokens` and `ignore_eos`. Further extensions of those servers are
    refused if they would change an answer.
    """

    ignored: ClassVar[frozenset[str]] = frozenset({"user", "safety_identifier", "prompt_cache_key"})
    without_effect: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "metadata": (),
        "prompt_cache_options": ({"mode": "implicit"},),
        "prompt_cache_retention": ("in_memory",),
        "service_tier": ("auto", "default"),
        "store": (),
    }
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "add_generation_prompt": (True,),
        "allowed_token_ids": (),
        "bad_words": (),
        "chat_template": (),
        "continue_final_message": (),
        "documents": (),
        "include_stop_str_in_output": (),
        "length_penalty": (1, 0),
        "logits_processors": (),
        "mirostat": (0,),
        "prompt_logprobs": (),
        "skip_special_tokens": (True,),
        "stop_token_ids": (),
        "truncate_prompt_tokens": (),
        "typical_p": (1,),
        "use_beam_search": (),
    }

    model: str = Field(min_length=1)
    stream: bool = False
    temperature: float | None = shared("temperature", None, le=2)
    top_p: float | None = shared("top_p", None, ge=0, gt=None)
    top_k: int | None = shared("top_k", None, ge=-1)
    min_p: float = shared("min_p", 0.0)
    repetition_penalty: float = shared("repetition_penalty", 1.0)
    min_tokens: int = shared("min_tokens", 0)
    seed: int | None = None
    ignore_eos: bool = False

    def drawing_arguments(self) -> Arguments:
        """Return the arguments of the client that say how tokens are drawn, without the seed."""
        top_k = {} if self.top_k is None else {"top_k": max(self.top_k, 0)}
        return shared_options(self) | top_k


class SamplingBody(DrawingBody):
    """What chat completions and completions have in common."""

    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    max_tokens: TokenLimit | None = None
    stop: Stop = Field(default_factory=list)
    presence_penalty: float = shared("presence_penalty", 0.0)
    frequency_penalty: float = shared("frequency_penalty", 0.0)
    logit_bias: Biases = Field(default_factory=dict)

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def counts_continuously(self) -> bool:
        """Whether every chunk of a stream has the usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def sampling_arguments(self) -> Arguments:
        """Return the arguments of the client that do not depend on the endpoint, without the seed.

        Raises:
            ApiError: when `stream_options` comes without `stream`, or a key of `logit_bias` is no token id.
        """
        if self.stream_options is not None and not self.stream:
            raise refused_value("stream_options", "stream_options is for streams; set stream to true")
        return self.drawing_arguments() | {"logit_bias": token_biases(self.logit_bias)}


def token_biases(given: dict[str, float]) -> dict[int, float]:
    """Return the biases of token ids, which JSON writes as texts.

    Raises:
        ApiError: when a key is no token id.
    """
    for key in given:
        if not (key.isascii() and key.isdigit()) or int(key[:11]) > MAX_TOKENS:
            raise refused_value("logit_bias", f"logit_bias has the key {key[:40]!r}; keys are token ids")
    return {int(key): float(bias) for key, bias in given.items()}
