"""The body of a request to /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import Field, field_validator

from flowedge.client.request import GenerateArguments
from flowedge.serving.answers.body import not_supported, refused_value
from flowedge.serving.openai.sampling import MAX_CHOICES, MAX_LOGPROBS, SamplingBody

DEFAULT_TOKENS = 16  # as OpenAI's

Prompt: TypeAlias = str | list[int]
"""A text, or token ids."""


class CompletionBody(SamplingBody):
    """What a client asks of /v1/completions.

    Attributes:
        prompt: one or several prompts.
        logprobs: how many likeliest tokens are listed for each token; None without log-probabilities.
    """

    unsupported: ClassVar = {"suffix": ("",)}

    prompt: list[Any]
    best_of: int | None = Field(None, ge=1)
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompts(cls, given: Any) -> Any:
        one = isinstance(given, str) or (isinstance(given, list) and given and _are_ids(given))
        return [given] if one else given

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts in their order.

        Raises:
            ApiError: when there is none, there are too many, or one is neither text nor token ids.
        """
        if not self.prompt:
            raise refused_value("prompt", "prompt is empty; give a text or token ids")
        if len(self.prompt) * self.n > MAX_CHOICES:
            raise refused_value(
                "prompt",
                f"{len(self.prompt)} prompts by n = {self.n} are over {MAX_CHOICES} answers; give fewer",
            )
        for place, prompt in enumerate(self.prompt):
            if not (isinstance(prompt, str) or (isinstance(prompt, list) and _are_ids(prompt))) or not prompt:
                raise refused_value(
                    f"prompt[{place}]",
                    f"prompt[{place}] is {prompt!r:.100}; it must be a text or token ids, and not empty",
                )
        return self.prompt

    def answer_arguments(self) -> GenerateArguments:
        """Return the client's arguments of every answer, without the seed.

        Raises:
            ApiError: when parameters do not fit together, or `best_of` is not `n`.
        """
        if self.best_of not in (None, self.n):
            raise not_supported("best_of", (self.n,))
        if self.echo and self.logprobs is not None:
            raise refused_value("echo", "echo does not go with logprobs; leave one of them out")
        arguments = self.sampling_arguments()
        arguments["logprobs"] = self.logprobs
        arguments["echo"] = self.echo
        arguments["max_new_tokens"] = self.max_tokens or DEFAULT_TOKENS
        arguments["fit_context"] = self.max_tokens is None
        return arguments


def _are_ids(values: list[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)
