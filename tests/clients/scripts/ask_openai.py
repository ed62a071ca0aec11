"""OpenAI's package: answers, streams, tools, schemas, completions, responses and errors."""

import json
import os
from typing import Literal

from openai import APIStatusError, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

MODEL = os.environ["CLIENT_MODEL"]
client = OpenAI(base_url=os.environ["CLIENT_URL"] + "/v1", api_key="none", max_retries=0)
question = [{"role": "user", "content": "Write a function that adds two numbers."}]
asked = {"model": MODEL, "messages": question, "max_tokens": 24, "seed": 7}


class Ticket(BaseModel):
    area: Literal["kitchen", "garden", "cellar"]
    urgent: bool


# A stream is the whole answer in parts, and its usage comes last.
whole = client.chat.completions.create(**asked)
text = whole.choices[0].message.content
*chunks, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
assert last.usage.completion_tokens == whole.usage.completion_tokens == 24
assert whole.usage.total_tokens == whole.usage.prompt_tokens + 24

# Several answers are those of the seeds that follow.
several = client.chat.completions.create(**asked, n=3)
assert [choice.index for choice in several.choices] == [0, 1, 2]
assert several.choices[0].message.content == text
second = client.chat.completions.create(**{**asked, "seed": 8})
assert several.choices[1].message.content == second.choices[0].message.content

assert len(client.chat.completions.create(**{**asked, "max_tokens": 2}, n=20).choices) == 20

# Log-probabilities: the tokens make the text, and the best alternative is no less likely.
scored = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3).choices[0]
assert "".join(each.token for each in scored.logprobs.content) == text
for each in scored.logprobs.content:
    assert len(each.top_logprobs) == 3
    assert each.logprob <= each.top_logprobs[0].logprob + 1e-4 <= 1e-4

# A schema is obeyed, in chat and in responses, whole and as a stream.
ticket = client.chat.completions.parse(**{**asked, "max_tokens": 60}, response_format=Ticket)
assert isinstance(ticket.choices[0].message.parsed, Ticket)
response = client.responses.parse(
    model=MODEL, input="A pipe leaks.", text_format=Ticket, max_output_tokens=60
)
assert isinstance(response.output_parsed, Ticket)

# A forced tool is called, whole and as a stream.
tool = {"type": "function", "function": {"name": "file", "parameters": Ticket.model_json_schema()}}
forced = {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "file"}}}
called = client.chat.completions.create(**{**asked, "max_tokens": 200}, **forced).choices[0]
(call,) = called.message.tool_calls
assert call.function.name == "file"
assert called.finish_reason in ("tool_calls", "stop")
Ticket.model_validate_json(call.function.arguments)
pieces = client.chat.completions.create(**{**asked, "max_tokens": 200}, **forced, stream=True)
deltas = [each for piece in pieces for each in piece.choices[0].delta.tool_calls or ()]
assert json.loads("".join(each.function.arguments or "" for each in deltas)) == json.loads(
    call.function.arguments
)

# What services add to OpenAI's API goes by extra_body, and what changes no answer is taken.
chosen = {"extra_body": {"structured_outputs": {"choice": ["red", "green"]}}}
assert client.chat.completions.create(**asked, **chosen).choices[0].message.content in ("red", "green")
off = {"repetition_penalty": 1.0, "min_p": 0}
told = {"metadata": {"team": "a"}, "store": False, "service_tier": "auto", "user": "me"}
assert client.chat.completions.create(**asked, **told, extra_body=off).choices[0].message.content == text

# Completions and responses, with their streams.
raw = {"model": MODEL, "prompt": "def add(a, b):", "max_tokens": 8, "temperature": 0}
completion = client.completions.create(**raw).choices[0].text
assert "".join(part.choices[0].text for part in client.completions.create(**raw, stream=True)) == completion
*events, last = client.responses.create(
    model=MODEL, input="What does len do?", max_output_tokens=16, stream=True
)
said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
assert last.type in ("response.completed", "response.incomplete")
assert last.response.output_text == said != ""

# Errors are of the type that a program looks for.
assert MODEL in [model.id for model in client.models.list()]
try:
    client.chat.completions.create(model="no-such-model", messages=question)
    raise AssertionError("a model that does not exist was answered")
except NotFoundError as error:
    assert error.code == "model_not_found"
try:
    long = [{"role": "user", "content": "word " * 5000}]
    client.chat.completions.create(model=MODEL, messages=long)
    raise AssertionError("a prompt beyond the context was answered")
except BadRequestError as error:
    assert error.code == "context_length_exceeded"
try:
    client.embeddings.create(model=MODEL, input="a text")
    raise AssertionError("embeddings were made")
except APIStatusError as error:
    assert error.status_code == 501
