"""What a gateway holds of requests that have ended: nothing that grows with their number."""

from __future__ import annotations

import gc
import json
import sys
import uuid
from typing import Any

from flowedge.gateway.answers.body import read_body
from flowedge.gateway.openai.chat_body import ChatCompletionBody
from tests.gateway.application import GatewayHere

CHAT = "/v1/chat/completions"
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


def chat(**changes: Any) -> dict[str, Any]:
    """Return the body of a request that no request before was like."""
    message = {"role": "user", "content": f"Add {uuid.uuid4().hex}"}
    return {"model": "bundled", "messages": [message], "max_tokens": 1, "user": uuid.uuid4().hex, **changes}


def blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def ask_everything(served: GatewayHere, times: int) -> None:
    with served.client() as client:
        for _ in range(times):
            for changes in ({}, {"stream": True}, {"n": 2}, {"tools": [TOOL]}):
                assert client.post(CHAT, json=chat(**changes)).status_code == 200
            assert client.post(CHAT, json=chat(model=uuid.uuid4().hex)).status_code == 404
            assert client.post(CHAT, json=chat(temperature=-1)).status_code == 400
            assert client.get("/metrics").status_code == 200
            assert client.get("/v1/nothing").status_code == 404


def test_requests_leave_nothing_behind(served: GatewayHere) -> None:
    ask_everything(served, 2)
    grown = []
    for _ in range(2):
        before = blocks()
        ask_everything(served, 3)
        grown.append(blocks() - before)
    # The event loop drops timers that were cancelled a hundred at a time.
    assert min(grown) < 96, f"each of 24 requests left four objects: {grown}"


def test_texts_of_bodies_are_not_held() -> None:
    bodies = [json.dumps(chat()).encode() for _ in range(1000)]
    read_body(ChatCompletionBody, bodies[0])
    before = blocks()
    for each in bodies:
        read_body(ChatCompletionBody, each)
    assert blocks() - before < 100
