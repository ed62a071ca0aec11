"""Answers that a request asks for, in the client's terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from flowedge.client import AsyncClient, AsyncGeneration, ChatMessage
from flowedge.client.transcript import OnRecovering
from flowedge.core.generate_options import MAX_TOKENS, GenerateOptions
from flowedge.core.sampling import MAX_SEED
from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.answers.body import Arguments
from flowedge.gateway.answers.closed_schema import closed_schema


@dataclass(frozen=True)
class ToolUse:
    """The tools of an answer.

    Attributes:
        tools: in OpenAI's form.
        choice: "auto", "none", "required", or the name of the tool that is called.
        parallel: whether the answer may call several.
    """

    tools: tuple[dict[str, Any], ...] = ()
    choice: str = "auto"
    parallel: bool = True

    @property
    def calls(self) -> bool:
        """Whether the answer may have tool calls."""
        return bool(self.tools) and self.choice != "none"

    def offered(self, *, by_grammar: bool) -> Sequence[dict[str, Any]]:
        """Return the tools; where a grammar holds for calls, they have the listed arguments only.

        by_grammar: whether the answer has a grammar also where no call is required.
        """
        if self.choice == "none" or (self.choice == "auto" and not by_grammar):
            return self.tools
        return [{**tool, "function": _with_closed_parameters(tool["function"])} for tool in self.tools]


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation, with further values for the model's chat template."""

    messages: Sequence[ChatMessage]
    tool_use: ToolUse = ToolUse()
    template_values: Mapping[str, Any] = field(default_factory=dict)


Prompt: TypeAlias = ChatPrompt | str | Sequence[int]
"""A conversation, a text that the model continues, or token ids."""


@dataclass(frozen=True)
class PlannedAnswer:
    """One answer that a request asks for.

    Attributes:
        place: of its prompt in the request; answers of the same prompt share its tokens.
    """

    prompt: Prompt
    options: GenerateOptions
    place: int = 0

    def start(
        self, client: AsyncClient, request_id: str, timeout_s: float, on_recovering: OnRecovering
    ) -> AsyncGeneration:
        """Ask a pipeline for the answer; see `Client.generate` for the arguments.

        Raises:
            BadRequestError: when the prompt is empty or makes no sense.
        """
        if isinstance(self.prompt, ChatPrompt):
            use = self.prompt.tool_use
            return client.chat(
                self.prompt.messages,
                tools=use.offered(by_grammar=self.options.grammar is not None),
                tool_choice=use.choice,
                parallel_tool_calls=use.parallel,
                template_values=self.prompt.template_values or None,
                options=self.options,
                request_id=request_id,
                timeout_s=timeout_s,
                on_recovering=on_recovering,
            )
        text, ids = (self.prompt, None) if isinstance(self.prompt, str) else (None, self.prompt)
        return client.generate(
            text=text,
            prompt_ids=ids,
            options=self.options,
            request_id=request_id,
            timeout_s=timeout_s,
            on_recovering=on_recovering,
        )


def _with_closed_parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    return {**function, "parameters": closed_schema(function["parameters"])}


def with_tool_names(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages in which tools have their names, which some templates write: those of the calls."""
    names: dict[str, str] = {}
    found = []
    for message in messages:
        names.update((call.id, call.name) for call in message.tool_calls)
        unnamed = message.role == "tool" and not message.name
        found.append(replace(message, name=names.get(message.tool_call_id, "")) if unnamed else message)
    return found


def choice_options(
    arguments: Arguments, seed: int | None, caller: ApiCaller, choices: int = 1
) -> list[GenerateOptions]:
    """Return the options of several answers of one prompt, whose seeds follow each other.

    Args:
        seed: of the first answer; None lets all be drawn.

    Raises:
        BadRequestError: when an option is out of range.
    """
    unlimited = {"max_new_tokens": MAX_TOKENS, "fit_context": True}  # up to the end of the context
    limit = {} if "max_new_tokens" in arguments else unlimited
    own = {"priority": caller.priority, "tenant": caller.tenant}
    base = GenerateOptions().changed(**limit | arguments | own)
    if seed is None:
        return [base] * choices
    return [replace(base, seed=(seed + choice) % (MAX_SEED + 1)) for choice in range(choices)]
