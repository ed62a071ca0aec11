"""pydantic-ai: texts, outputs by tools and by schemas, streams, and a history, over chat and responses."""

import asyncio
import os
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = os.environ["CLIENT_MODEL"]
provider = OpenAIProvider(base_url=os.environ["CLIENT_URL"] + "/v1", api_key="none")
settings = {"max_tokens": 200, "temperature": 0}


class Ticket(BaseModel):
    area: Literal["kitchen", "garden", "cellar"]
    urgent: bool


async def ask(model: OpenAIChatModel | OpenAIResponsesModel) -> None:
    """Ask for texts and objects by one of OpenAI's endpoints."""
    agent = Agent(model, model_settings={**settings, "max_tokens": 24})
    first = await agent.run("What is a list in Python?")
    assert first.output
    assert first.usage.output_tokens == 24
    async with agent.run_stream("What is a list in Python?") as streamed:
        text = "".join([part async for part in streamed.stream_text(delta=True)])
    assert text == first.output
    again = await agent.run("And for a list?", message_history=first.all_messages())
    assert again.usage.input_tokens > first.usage.input_tokens

    for form in (ToolOutput(Ticket), NativeOutput(Ticket)):
        done = await Agent(model, output_type=form, model_settings=settings).run("Water drips.")
        assert isinstance(done.output, Ticket)

    # A schema and a tool together: the tool may be called first, once, and the output is of the schema.
    both = Agent(model, output_type=NativeOutput(Ticket), model_settings=settings)
    places = []

    @both.tool_plain(prepare=lambda _, definition: None if places else definition)
    def weather(place: Literal["house", "garden"]) -> str:
        """Tell the weather."""
        places.append(place)
        return f"rain at the {place}"

    assert isinstance((await both.run("Water drips.")).output, Ticket)


async def ask_both() -> None:
    await ask(OpenAIChatModel(MODEL, provider=provider))
    await ask(OpenAIResponsesModel(MODEL, provider=provider))


asyncio.run(ask_both())
