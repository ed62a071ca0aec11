"""OpenAI's Agents SDK: texts, streams, outputs by a schema, and a tool that has to be called."""

import asyncio
import os
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

MODEL = os.environ["CLIENT_MODEL"]
client = AsyncOpenAI(base_url=os.environ["CLIENT_URL"] + "/v1", api_key="none", max_retries=0)
set_tracing_disabled(True)
lit: list[str] = []


class Ticket(BaseModel):
    area: Literal["kitchen", "garden", "cellar"]
    urgent: bool


@function_tool(is_enabled=lambda *_: not lit)  # the bundled model would call it again and again
def light(room: Literal["kitchen", "garden", "cellar"]) -> str:
    """Switch the light of a room on."""
    lit.append(room)
    return "it is on"


async def ask(model: OpenAIChatCompletionsModel | OpenAIResponsesModel) -> None:
    """Run agents by one of OpenAI's endpoints."""
    plain = Agent(name="plain", model=model, model_settings=ModelSettings(max_tokens=300, temperature=0))
    question = "Return the length of a list."  # the answer ends by itself: the SDK refuses one that is cut
    text = (await Runner.run(plain, question)).final_output
    assert text
    running = Runner.run_streamed(plain, question)
    deltas = [
        event.data.delta
        async for event in running.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(deltas) == running.final_output == text

    typed = Agent(
        name="typed",
        model=model,
        output_type=Ticket,
        model_settings=ModelSettings(max_tokens=80, temperature=0),
    )
    assert isinstance((await Runner.run(typed, "Water drips.")).final_output, Ticket)

    lit.clear()
    both = Agent(
        name="both",
        model=model,
        output_type=Ticket,
        tools=[light],
        model_settings=ModelSettings(max_tokens=400, temperature=0, parallel_tool_calls=False),
    )
    assert isinstance((await Runner.run(both, "Water drips.")).final_output, Ticket)

    calling = Agent(
        name="calling",
        model=model,
        tools=[light],
        tool_use_behavior="stop_on_first_tool",
        model_settings=ModelSettings(
            max_tokens=200, temperature=0, tool_choice="required", parallel_tool_calls=False
        ),
    )
    lit.clear()
    assert (await Runner.run(calling, "It is dark in the cellar.")).final_output == "it is on"
    assert lit


async def ask_both() -> None:
    await ask(OpenAIChatCompletionsModel(MODEL, client))
    await ask(OpenAIResponsesModel(MODEL, client))


asyncio.run(ask_both())
