"""litellm: its providers for OpenAI's, vLLM's and Ollama's endpoints, and its types of errors."""

import asyncio
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # the package asks the internet for it otherwise

import litellm
from litellm import acompletion, completion, text_completion
from litellm.exceptions import BadRequestError, ContextWindowExceededError, NotFoundError

MODEL = os.environ["CLIENT_MODEL"]
URL = os.environ["CLIENT_URL"]
litellm.suppress_debug_info = True
question = [{"role": "user", "content": "What does len do?"}]
asked = {"messages": question, "max_tokens": 24, "seed": 5, "num_retries": 0, "api_key": "none"}
as_openai = {"model": f"openai/{MODEL}", "api_base": URL + "/v1"}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "paint", "schema": SCHEMA, "strict": True}}
TOOL = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}

whole = completion(**as_openai, **asked)
text = whole.choices[0].message.content
for provider in ("openai", "hosted_vllm"):
    parts = list(
        completion(
            **{**as_openai, "model": f"{provider}/{MODEL}"},
            **asked,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    pieces = [part.choices[0].delta.content or "" for part in parts if part.choices]
    assert "".join(pieces) == text != ""
    assert [part.usage.completion_tokens for part in parts if getattr(part, "usage", None)] == [
        whole.usage.completion_tokens
    ]
assert len(completion(**as_openai, **asked, n=2).choices) == 2

for provider, base in (("ollama_chat", URL), ("ollama", URL)):
    local = {**asked, "model": f"{provider}/{MODEL}", "api_base": base, "temperature": 0}
    answer = completion(**local)
    streamed = completion(**local, stream=True)
    assert (
        "".join(part.choices[0].delta.content or "" for part in streamed) == answer.choices[0].message.content
    )

raw = text_completion(
    model=f"text-completion-openai/{MODEL}",
    api_base=URL + "/v1",
    api_key="none",
    prompt="def add(a, b):",
    max_tokens=8,
)
assert raw.choices[0].text

obeyed = completion(**as_openai, **{**asked, "max_tokens": 60}, response_format=FORM)
assert json.loads(obeyed.choices[0].message.content)["colour"] in ("red", "green", "blue")
forced = {"tool_choice": "required", "parallel_tool_calls": False}
called = completion(**as_openai, **{**asked, "max_tokens": 200}, tools=[TOOL], **forced)
(call,) = called.choices[0].message.tool_calls
assert json.loads(call.function.arguments)["colour"] in ("red", "green", "blue")
assert asyncio.run(acompletion(**as_openai, **asked)).choices[0].message.content == text

scored = completion(**as_openai, **asked, logprobs=True, top_logprobs=2).choices[0]
assert "".join(each["token"] for each in scored.logprobs["content"]).startswith(text)

try:
    completion(**{**as_openai, "model": "openai/no-such-model"}, **asked)
    raise AssertionError("a model that does not exist was answered")
except NotFoundError as error:
    assert "no-such-model" in str(error)
try:
    completion(**as_openai, **{**asked, "messages": [{"role": "user", "content": "word " * 5000}]})
    raise AssertionError("a prompt beyond the context was answered")
except ContextWindowExceededError as error:
    assert isinstance(error, BadRequestError)
