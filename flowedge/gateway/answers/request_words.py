"""Errors of a pipeline in the words of the request: by the names that its client has sent."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from flowedge.core.errors import BadRequestError, CapacityError, ContextLengthError, GrammarError
from flowedge.core.generate_options import GenerateOptions
from flowedge.gateway.errors import ApiError, api_error

_GRAMMAR = re.compile(r"grammar \(\w+\)")  # see GrammarSource.parameter
_OPTIONS = re.compile(rf"\b({'|'.join(each.name for each in fields(GenerateOptions))}|tool_choice)\b")
_TOOLS = re.compile(r"\b(a|two) tools?\b|\bthe tool\b")
_PROMPT = re.compile(r"\b(prompt|conversation|message|chat template)\b")


@dataclass(frozen=True)
class RequestWords:
    """The names that a request has for what a pipeline's errors speak of.

    Attributes:
        limit: the parameter of the number of new tokens; prompt: that of the prompt.
        form: the parameter that says what the answers' text must be.
        template_values: the parameter of values for the chat template.
    """

    limit: str
    prompt: str
    form: str = "response_format"
    template_values: str = "chat_template_kwargs"

    def said_of(self, error: BadRequestError, context: int | None) -> ApiError:
        """Return the error for the client.

        context: most tokens of a prompt with its answer, if that is known.
        """
        shown = api_error(error)
        if isinstance(error, GrammarError):
            return ApiError(400, self._of_grammar(shown.message), param=self.form)
        if isinstance(error, CapacityError) and not isinstance(error, ContextLengthError):
            return shown
        param = shown.param or self._param_of(shown.message)
        message = shown.message
        for internal, name in self._renamed.items():
            message = message.replace(internal, name)
        if isinstance(error, ContextLengthError):
            # The words of OpenAI, by which clients know this error.
            length = "exceeded" if context is None else f"{context} tokens"
            message, param = f"This model's maximum context length is {length}. {message}", self.prompt
        return ApiError(shown.status, message, kind=shown.kind, param=param, code=shown.code)

    @property
    def _renamed(self) -> dict[str, str]:
        return {
            "the request of flowedge.v1.Generation/Generate": f"{self.prompt}, as a message,",
            "max_new_tokens": self.limit,
            "prompt_ids": self.prompt,
            "template_values": self.template_values,
        }

    def _of_grammar(self, message: str) -> str:
        subject = _GRAMMAR.match(message)
        return f"{self.form}: {message}" if subject is None else f"{self.form}{message[subject.end() :]}"

    def _param_of(self, message: str) -> str | None:
        """Return the parameter that a message of a pipeline speaks of first; None if it names none."""
        for internal, name in self._renamed.items():
            if internal in message:
                return name
        option = _OPTIONS.search(message)
        if option is not None:
            return option[0]
        if _TOOLS.search(message):
            return "tools"
        return self.prompt if _PROMPT.search(message) else None
