"""The body of a request to /v1/chat/completions."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from flowedge.gateway.answers.body import Arguments, refused_value, shared
from flowedge.gateway.answers.planned import ToolUse
from flowedge.gateway.answers.request_words import RequestWords
from flowedge.gateway.openai.messages import MessageBody
from flowedge.gateway.openai.sampling import ReasoningEffort, SamplingBody, TokenLimit, template_values
from flowedge.gateway.openai.structure import StructureFields
from flowedge.gateway.openai.tools import MAX_TOOLS, ToolBody, ToolChoiceBody, tool_use

MAX_MESSAGES = 1024


class ChatCompletionBody(SamplingBody, StructureFields):
    """What a client asks of /v1/chat/completions.

    Attributes:
        chat_template_kwargs: an extension: further values for the model's chat template.
    """

    without_effect: ClassVar = {**SamplingBody.without_effect, "prediction": (), "verbosity": ("medium",)}
    unsupported: ClassVar = {
        **SamplingBody.unsupported,
        "audio": (),
        "function_call": ("none", "auto"),
        "functions": (),
        "modalities": (["text"],),
        "moderation": (),
        "web_search_options": (),
    }

    messages: list[MessageBody] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool = False
    top_logprobs: int | None = shared("logprobs", None)
    tools: list[ToolBody] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: ToolChoiceBody | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: ReasoningEffort | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def words(self) -> RequestWords:
        """The names of the request's parameters, for errors."""
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return RequestWords(limit, "messages", self.structure()[0])

    @property
    def token_limit(self) -> int | None:
        """The number of tokens that an answer has at most; None if the request does not say it.

        Raises:
            ApiError: when the two parameters for it differ.
        """
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise refused_value(
                "max_completion_tokens",
                f"max_tokens is {self.max_tokens} and max_completion_tokens is {self.max_completion_tokens}; "
                "give one of them",
            )
        return limits.pop() if limits else None

    @property
    def likeliest(self) -> int | None:
        """How many likeliest tokens are listed for each token; None without log-probabilities.

        Raises:
            ApiError: when `top_logprobs` comes without `logprobs`.
        """
        if self.top_logprobs and not self.logprobs:
            raise refused_value("top_logprobs", "top_logprobs needs logprobs; set logprobs to true")
        return (self.top_logprobs or 0) if self.logprobs else None

    def tool_use(self) -> ToolUse:
        """Return the tools of the answer, and which it must call.

        Raises:
            ApiError: when tools and choice do not fit together.
        """
        functions = [tool.function for tool in self.tools]
        mode, names = self.tool_choice.mode_and_names() if self.tool_choice else ("auto", None)
        return tool_use(functions, mode, names, parallel=self.parallel_tool_calls)

    def template_values(self) -> dict[str, Any]:
        """Return the values that the chat template is given beside messages and tools."""
        return {**template_values(self.reasoning_effort), **self.chat_template_kwargs}

    def answer_arguments(self) -> Arguments:
        """Return the client's arguments of every answer, without the seed.

        Raises:
            ApiError: when parameters do not fit together.
        """
        arguments = self.sampling_arguments() | {"logprobs": self.likeliest, "grammar": self.structure()[1]}
        if self.token_limit is not None:
            arguments["max_new_tokens"] = self.token_limit
        return arguments
