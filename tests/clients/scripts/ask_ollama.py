"""Ollama's package: chats, streams, schemas, tools, raw prompts, and what it asks about models."""

import json
import os

from ollama import Client, ResponseError

MODEL = os.environ["CLIENT_MODEL"]
client = Client(os.environ["CLIENT_URL"])
question = [{"role": "user", "content": "Write a story about a farmer and his hens."}]
options = {"num_predict": 24, "seed": 3, "temperature": 0.8}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "painted": {"type": "boolean"}},
    "required": ["colour", "painted"],
}

whole = client.chat(MODEL, question, options=options)
parts = list(client.chat(MODEL, question, options=options, stream=True))
assert "".join(part.message.content or "" for part in parts) == whole.message.content != ""
assert parts[-1].done
assert parts[-1].done_reason == whole.done_reason == "length"
assert parts[-1].eval_count == whole.eval_count == 24
assert whole.prompt_eval_count > 0

told = client.chat(MODEL, question, format=SCHEMA, options={"num_predict": 60})
assert set(json.loads(told.message.content)) == {"colour", "painted"}

raw = client.generate(MODEL, "def add(a, b):", raw=True, options={"num_predict": 8, "temperature": 0})
streamed = client.generate(
    MODEL, "def add(a, b):", raw=True, stream=True, options={"num_predict": 8, "temperature": 0}
)
assert "".join(part.response for part in streamed) == raw.response != ""


def paint(colour: str) -> str:
    """Paint the wall.

    Args:
        colour: of the paint.
    """
    return colour


offered = client.chat(MODEL, question, tools=[paint], options=options)
assert offered.message.content or offered.message.tool_calls

# A last message of the assistant is continued, and options that change nothing here are taken.
begun = [*question, {"role": "assistant", "content": "The function len"}]
fixed = {"num_predict": 8, "temperature": 0}
assert client.chat(MODEL, begun, options=fixed).message.content
odd = {**options, "penalize_newline": True, "vocab_only": False, "repeat_penalty": 1.0}
assert client.chat(MODEL, question, options=odd).message.content == whole.message.content

assert MODEL in [model.model.partition(":")[0] for model in client.list().models]
assert MODEL in [model.model.partition(":")[0] for model in client.ps().models]
assert "completion" in client.show(MODEL).capabilities
try:
    client.chat("no-such-model", question)
    raise AssertionError("a model that does not exist was answered")
except ResponseError as error:
    assert error.status_code == 404
try:
    client.embed(MODEL, "a text")
    raise AssertionError("embeddings were made")
except ResponseError as error:
    assert error.status_code == 501
