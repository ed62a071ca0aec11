"""Parameters that change nothing: the answer comes, and its headers name them; a strict gateway refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.application import GatewayHere, gateway_here

HELLO = [{"role": "user", "content": "Hello"}]
IGNORED = "x-flowedge-ignored"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 2, "store": True, "stream_options": {"x": 1}, "stream": True},
    COMPLETIONS: {"prompt": "a", "max_tokens": 2, "metadata": {"a": "b"}, "kv_transfer_params": {"a": 1}},
    "/v1/responses": {
        "input": "a",
        "max_output_tokens": 2,
        "truncation": "auto",
        "text": {"verbosity": "low"},
    },
    "/api/chat": {"messages": HELLO, "options": {"num_predict": 2, "penalize_newline": True}, "é\n": 1},
    "/api/generate": {"prompt": "a", "options": {"num_predict": 2, "repeat_penalty": 1.1}, "user": "me"},
}
NAMED = {
    CHAT: "store, stream_options.x",
    COMPLETIONS: "metadata, kv_transfer_params",
    "/v1/responses": "truncation",
    "/api/chat": "%C3%A9%0A, options.penalize_newline",
    "/api/generate": "user",
}


@pytest.fixture(scope="module")
def strict(cluster4: str) -> Iterator[GatewayHere]:
    with gateway_here(cluster4, {"limits": {"strict": True}}) as gateway:
        yield gateway


@pytest.mark.parametrize("path", ASKED)
def test_the_answer_names_what_it_ignores(served: GatewayHere, strict: GatewayHere, path: str) -> None:
    body = {"model": "bundled", **ASKED[path]}
    with served.client() as client:
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers[IGNORED] == NAMED[path]
    with strict.client() as client:
        refused = client.post(path, json=body)
        assert (refused.status_code, IGNORED in refused.headers) == (400, False)


def test_what_is_asked_without_them_has_no_such_header(served: GatewayHere) -> None:
    body = {"model": "bundled", "prompt": "a", "max_tokens": 2, "user": "me", "min_p": 0}
    with served.client() as client:
        assert IGNORED not in client.post(COMPLETIONS, json=body).headers


@pytest.mark.parametrize(("path", "given"), [(CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "a"})])
def test_every_chunk_tells_the_usage_so_far(served: GatewayHere, path: str, given: dict[str, Any]) -> None:
    """As load generators ask for it."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {
        "model": "bundled",
        "max_tokens": 12,
        "ignore_eos": True,
        "stream": True,
        "stream_options": options,
    }
    with served.client() as client:
        text = client.post(path, json={**body, **given}).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert (len(counts) > 3, counts[-2:]) == (True, [12, 12])
    assert counts[0] < 12
    for event in events:
        usage = event["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["prompt_tokens"] == events[-1]["usage"]["prompt_tokens"]
    assert events[-1]["choices"] == []
