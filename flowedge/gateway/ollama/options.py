"""Parameters that chat and generate have in common."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from flowedge.client import Grammar
from flowedge.gateway.answers.body import (
    Arguments,
    BodyObject,
    RequestBody,
    Stop,
    is_off,
    not_supported,
    shared,
    shared_options,
)
from flowedge.gateway.answers.closed_schema import schema_grammar

_WITHOUT_EFFECT = frozenset(
    {
        "f16_kv",
        "low_vram",
        "main_gpu",
        "num_batch",
        "num_ctx",
        "num_gpu",
        "num_keep",
        "num_thread",
        "numa",
        "repeat_last_n",
        "use_mlock",
        "use_mmap",
    }
)
"""Options of how a model is loaded, which the pipeline has settled."""
_OFF = {"mirostat": 0, "tfs_z": 1, "typical_p": 1}
"""Options of sampling that are not supported, with the value that turns each off."""


class ModelOptions(BodyObject):
    """`options`: how tokens are drawn.

    Attributes:
        num_predict: the number of tokens at most; 0 and less for no number.
        repetition_penalty: of all tokens of prompt and answer, whatever `repeat_last_n`.
    """

    temperature: float | None = shared("temperature", None)
    top_p: float | None = shared("top_p", None, ge=0, gt=None)
    top_k: int | None = shared("top_k", None)
    seed: int | None = None
    num_predict: int = 0
    stop: Stop = Field(default_factory=list)
    presence_penalty: float = shared("presence_penalty", 0.0)
    frequency_penalty: float = shared("frequency_penalty", 0.0)
    min_p: float = shared("min_p", 0.0)
    repetition_penalty: float = shared("repetition_penalty", 1.0, alias="repeat_penalty")

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        given = {name: value for name, value in content.items() if name not in _WITHOUT_EFFECT}
        for name, off in _OFF.items():
            if not is_off(given.pop(name, None), (off,)):
                raise not_supported(f"options.{name}", (off,))
        return given


class AnswerBody(RequestBody):
    """What chat and generate have in common.

    Attributes:
        format: "json", a JSON schema, or "" for any text.
        think: whether the model thinks before it answers, or how much.
    """

    ignored: ClassVar[frozenset[str]] = frozenset({"keep_alive", "truncate", "shift"})

    model: str = Field(min_length=1)
    stream: bool = True
    options: ModelOptions = ModelOptions()
    format: Any = ""
    think: Any = None
    logprobs: bool = False
    top_logprobs: int = shared("logprobs", 0)

    @field_validator("format")
    @classmethod
    def _known_format(cls, given: Any) -> Any:
        if not (given in ("", "json") or isinstance(given, dict)):
            raise ValueError('it must be "json" or a JSON schema')
        return given

    @field_validator("think")
    @classmethod
    def _known_thinking(cls, given: Any) -> Any:
        if not (isinstance(given, bool) or given in ("low", "medium", "high", "max")):
            raise ValueError("it must be true, false, low, medium or high")
        return given

    @property
    def grammar(self) -> Grammar | None:
        """What the answer must be; None for any text."""
        if isinstance(self.format, dict):
            return schema_grammar(self.format)
        return Grammar.json_object() if self.format else None

    def template_values(self) -> dict[str, Any]:
        """Return the values for the chat template that say how much the model thinks."""
        if self.think is None:
            return {}
        effort = {"reasoning_effort": self.think} if isinstance(self.think, str) else {}
        return {"enable_thinking": bool(self.think), **effort}

    def answer_arguments(self) -> Arguments:
        """Return the client's arguments of the answer, without the seed."""
        arguments = shared_options(self.options)
        arguments |= {"grammar": self.grammar, "logprobs": self.top_logprobs if self.logprobs else None}
        if self.options.num_predict > 0:
            arguments["max_new_tokens"] = self.options.num_predict
        return arguments
