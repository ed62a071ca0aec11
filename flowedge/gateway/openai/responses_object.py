"""A response as a whole: the fields that say what was asked for, its state, and the events of its stream."""

from __future__ import annotations

import time
from typing import Any

from flowedge.gateway.answers.usage import RequestUsage
from flowedge.gateway.errors import ApiError
from flowedge.gateway.openai.chunks import encoded, new_id
from flowedge.gateway.openai.responses_body import ResponseBody
from flowedge.gateway.openai.responses_output import Event, ResponseOutput
from flowedge.gateway.streams import ServerEvent


class ResponseDocument:
    """A response, from its beginning to its end.

    Attributes:
        output: its items.
    """

    def __init__(self, body: ResponseBody, model: str) -> None:
        self.output = ResponseOutput()
        self._events = 0
        self._fields = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            **_request_fields(body),
        }

    @property
    def status(self) -> str:
        return str(self._fields["status"])

    def content(self, usage: RequestUsage | None = None) -> dict[str, Any]:
        """Return the response as it is now; `usage` is there when it is complete."""
        counted = None if usage is None else _usage_fields(usage)
        return {**self._fields, "output": self.output.items, "usage": counted}

    def end(self, finish_reason: str | None) -> str:
        """Take note of the end of the answer; return the status."""
        if finish_reason == "length":
            self._fields |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        else:
            self._fields |= {"status": "completed", "completed_at": int(time.time())}
        return self.status

    def state_event(self, name: str, usage: RequestUsage | None = None) -> ServerEvent:
        """Return an event that has the whole response, such as response.created."""
        return self.numbered({"type": f"response.{name}", "response": self.content(usage)})

    def numbered(self, event: Event) -> ServerEvent:
        """Return an event of the stream with the next number."""
        number = self._events
        self._events += 1
        return ServerEvent(encoded({**event, "sequence_number": number}), event["type"])

    def failed_event(self, error: ApiError) -> ServerEvent:
        """Return the last event of a stream that ends with an error."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        self._fields |= {"status": "failed", "error": {"code": code, "message": error.message}}
        return self.state_event("failed")


def _request_fields(body: ResponseBody) -> dict[str, Any]:
    """Return the fields that repeat what was asked for."""
    form = body.text.format.model_dump(by_alias=True, exclude_none=True)
    choice = body.tool_choice
    mode: Any = choice.model_dump(exclude_none=True, exclude_unset=True)
    return {
        "background": False,
        "instructions": body.instructions or None,
        "max_output_tokens": body.max_output_tokens,
        "metadata": {},
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": body.reasoning.effort, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": body.temperature,
        "text": {"format": form, "verbosity": "medium"},
        "tool_choice": mode if choice.type in ("function", "allowed_tools") else choice.type,
        "tools": [
            {"parameters": None, "strict": True, **tool.model_dump(exclude_none=True)} for tool in body.tools
        ],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
    }


def _usage_fields(usage: RequestUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.new_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.new_tokens,
        "flowedge": usage.acceptance(),
    }
