"""The body of a request to /v1/responses."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from flowedge.client import Grammar
from flowedge.gateway.answers.body import (
    Arguments,
    BodyObject,
    CheckedList,
    not_supported,
    refused_value,
    shared,
)
from flowedge.gateway.answers.planned import ToolUse
from flowedge.gateway.openai.responses_items import InputItem
from flowedge.gateway.openai.sampling import DrawingBody, ReasoningEffort, TokenLimit, template_values
from flowedge.gateway.openai.structure import grammar_of
from flowedge.gateway.openai.tools import MAX_TOOLS, FunctionTool, NamedFunction, tool_use

MAX_ITEMS = 1024
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"  # reasoning is shown; there is no encrypted form


class TextFormat(BodyObject):
    """The form of the text; of a schema, `strict` holds in any case."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextConfig(BodyObject):
    format: TextFormat = TextFormat()
    verbosity: Literal["low", "medium", "high"] = "medium"  # changes nothing


class ReasoningConfig(BodyObject):
    effort: ReasoningEffort | None = None
    summary: Literal["auto"] | None = None  # reasoning is put out as it is, not as a summary


class _OfTypeFunction(BodyObject):
    type: Literal["function"]


class ResponseTool(FunctionTool, _OfTypeFunction):
    """A function; the type is checked before the fields that other types do not have."""


class ResponseToolReference(NamedFunction, _OfTypeFunction):
    """The name of a function."""


class ResponseToolChoice(BodyObject):
    """Whether tools are called, and which. A mode alone is the type."""

    type: Literal["none", "auto", "required", "function", "allowed_tools"]
    name: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: CheckedList[ResponseToolReference] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _of_mode(cls, content: Any) -> Any:
        return {"type": content} if isinstance(content, str) else content

    def mode_and_names(self) -> tuple[str, list[str] | None]:
        """Return the mode and the tools' names for `tool_use`."""
        if self.type == "function":
            return "function", [self.name or ""]
        if self.type == "allowed_tools":
            return self.mode, [tool.name for tool in self.tools]
        return self.type, None


class ResponseStreamOptions(BodyObject):
    include_obfuscation: bool = False  # nothing is obfuscated


class ResponseBody(DrawingBody):
    """What a client asks of /v1/responses.

    Attributes:
        chat_template_kwargs: an extension: further values for the model's chat template.
    """

    without_effect: ClassVar = {**DrawingBody.without_effect, "truncation": ("disabled",)}
    unsupported: ClassVar = {
        **DrawingBody.unsupported,
        # Of chat completions:
        "frequency_penalty": (0,),
        "logit_bias": (),
        "max_completion_tokens": (),
        "max_tokens": (),
        "messages": (),
        "n": (1,),
        "presence_penalty": (0,),
        "regex": (),
        "response_format": (),
        "structured_outputs": (),
        "stop": (),
        "access_programs": (),
        "background": (),
        "background_options": (),
        "context_management": (),
        "conversation": (),
        "image": (),
        "max_tool_calls": (),
        "moderation": (),
        "previous_response_id": (),
        "prompt": (),
    }

    input: list[InputItem] = Field(min_length=1, max_length=MAX_ITEMS)
    instructions: str = ""
    max_output_tokens: TokenLimit | None = None
    text: TextConfig = TextConfig()
    tools: list[ResponseTool] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: ResponseToolChoice = ResponseToolChoice(type="auto")
    parallel_tool_calls: bool = True
    reasoning: ReasoningConfig = ReasoningConfig()
    include: CheckedList[str] = Field(default_factory=list)
    top_logprobs: int | None = shared("logprobs", None)
    stream_options: ResponseStreamOptions | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @field_validator("input", mode="before")
    @classmethod
    def _items(cls, given: Any) -> Any:
        return [{"role": "user", "content": given}] if isinstance(given, str) else given

    @property
    def likeliest(self) -> int | None:
        """How many likeliest tokens are listed for each token; None without log-probabilities.

        Raises:
            ApiError: when something is to be included that is not supported.
        """
        for place, name in enumerate(self.include):
            if name not in (LOGPROBS, ENCRYPTED_REASONING):
                raise not_supported(f"include[{place}]", (LOGPROBS, ENCRYPTED_REASONING))
        if LOGPROBS in self.include:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise refused_value("top_logprobs", f"top_logprobs needs {LOGPROBS} in include")
        return None

    def tool_use(self) -> ToolUse:
        """Return the tools of the answer, and which it must call.

        Raises:
            ApiError: when tools and choice do not fit together.
        """
        mode, names = self.tool_choice.mode_and_names()
        return tool_use(list(self.tools), mode, names, parallel=self.parallel_tool_calls)

    def grammar(self) -> Grammar | None:
        """Return what the answer's text must be, if it has no calls; None for any text.

        Raises:
            ApiError: when the schema is missing.
        """
        form = self.text.format
        if form.type == "json_schema" and form.schema_ is None:
            raise refused_value("text.format.schema", "text.format.schema is missing")
        return grammar_of(form.type, form.schema_)

    def template_values(self) -> dict[str, Any]:
        """Return the values that the chat template is given beside messages and tools."""
        return {**template_values(self.reasoning.effort), **self.chat_template_kwargs}

    def answer_arguments(self) -> Arguments:
        """Return the client's arguments of the answer, without the seed.

        Raises:
            ApiError: when parameters do not fit together.
        """
        arguments = self.drawing_arguments() | {"logprobs": self.likeliest, "grammar": self.grammar()}
        if self.max_output_tokens is not None:
            arguments["max_new_tokens"] = self.max_output_tokens
        return arguments
