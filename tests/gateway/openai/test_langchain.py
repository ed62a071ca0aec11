"""LangChain's ChatOpenAI: invoke, stream, tools and structured output."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from tests.gateway.application import GatewayHere


class Paint(BaseModel):
    """Paint something."""

    colour: Literal["red", "green", "blue"]


def _model(gateway: GatewayHere, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="bundled",
        base_url=f"{gateway.url}/v1",
        api_key=SecretStr("none"),
        max_retries=0,
        http_client=gateway.client(),
        **{"max_tokens": 8, **options},
    )


def test_invoke_and_stream_give_the_same_answer(served: GatewayHere) -> None:
    model = _model(served, temperature=0)
    messages = [("human", "Add two numbers."), ("ai", "def add"), ("human", "And three?")]
    answer = model.invoke(messages)
    assert answer.text
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 8
    assert "".join(part.text for part in model.stream(messages)) == answer.text


def test_a_bound_tool_is_called(served: GatewayHere) -> None:
    model = _model(served, max_tokens=120).bind_tools([Paint], tool_choice="any", parallel_tool_calls=False)
    answer = model.invoke("Paint it.")
    (call,) = answer.tool_calls  # type: ignore[attr-defined]
    assert call["name"] == "Paint"
    assert isinstance(Paint(**call["args"]), Paint)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(served: GatewayHere, method: Any) -> None:
    model = _model(served, max_tokens=120).with_structured_output(Paint, method=method)
    assert isinstance(model.invoke("Paint it."), Paint)


def test_the_responses_api(served: GatewayHere) -> None:
    model = _model(served, temperature=0, use_responses_api=True)
    answer = model.invoke("Add two numbers.")
    assert answer.text
    assert "".join(part.text for part in model.stream("Add two numbers.")) == answer.text
