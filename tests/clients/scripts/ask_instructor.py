"""instructor: objects by tools and by schemas, whole and as a stream."""

import os
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel

MODEL = os.environ["CLIENT_MODEL"]
client = OpenAI(base_url=os.environ["CLIENT_URL"] + "/v1", api_key="none", max_retries=0)
question = [{"role": "user", "content": "Water drips into the cellar."}]


class Ticket(BaseModel):
    area: Literal["kitchen", "garden", "cellar"]
    urgent: bool


asked = {"model": MODEL, "messages": question, "response_model": Ticket, "max_retries": 0, "max_tokens": 200}
for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    patched = instructor.from_openai(client, mode=mode)
    ticket, answer = patched.chat.completions.create_with_completion(**asked)
    assert isinstance(ticket, Ticket), mode
    assert answer.usage.completion_tokens > 0

by_responses = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS)
answered = by_responses.responses.create(
    model=MODEL, input="Water drips.", response_model=Ticket, max_retries=0, max_output_tokens=200
)
assert isinstance(answered, Ticket)

by_schema = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
*_, last = by_schema.chat.completions.create_partial(**asked, seed=2)
assert last.area in ("kitchen", "garden", "cellar")
assert last.urgent in (True, False)
assert by_schema.chat.completions.create(**asked, seed=2).model_dump() == last.model_dump()
