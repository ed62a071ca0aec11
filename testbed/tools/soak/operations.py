"""What the clients of a soak do: each operation is what a program in use does, and its answer is checked."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Callable, Generator, Mapping
from typing import Any

from flowedge.core.errors import ProtocolError
from testbed.tools.faults.streams import events

REQUEST_S = 300.0
_MODEL = "bundled"
_QUESTIONS = (
    "Write a function that adds two numbers.",
    "What does len do?",
    "Write a loop that counts the vowels in a text.",
    "How do I read a file line by line?",
)
_PROPERTIES = {
    "area": {"enum": ["kitchen", "garden", "cellar"]},
    "count": {"type": "integer", "minimum": 0, "maximum": 99},
    "urgent": {"type": "boolean"},
}
_SCHEMA = {
    "type": "object",
    "properties": _PROPERTIES,
    "required": list(_PROPERTIES),
    "additionalProperties": False,
}
_TOOL = {"type": "function", "function": {"name": "set_light", "parameters": _SCHEMA}}
_NESTED: dict[str, Any] = {"type": "null"}
for _ in range(150):
    _NESTED = {"type": "array", "items": _NESTED}
_REFUSED: tuple[bytes, ...] = (
    b'{"model": "bundled", "messages": [',
    json.dumps({"model": "no-such-model", "messages": [{"role": "user", "content": "a"}]}).encode(),
    json.dumps({"model": _MODEL, "messages": []}).encode(),
    json.dumps(
        {"model": _MODEL, "messages": [{"role": "user", "content": "a"}], "temperature": "hot"}
    ).encode(),
    json.dumps({"model": _MODEL, "messages": [{"role": "user", "content": "word " * 20_000}]}).encode(),
    json.dumps({"model": _MODEL, "messages": [{"role": "user", "content": "word " * 200_000}]}).encode(),
    json.dumps(
        {
            "model": _MODEL,
            "messages": [{"role": "user", "content": "a"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": _NESTED}},
        }
    ).encode(),
)


class SoakClient:
    """One client of a gateway, whose choices a seed decides."""

    def __init__(self, address: str, seed: int) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._chance = random.Random(seed)

    def chat(self) -> None:
        """Hold a conversation of three turns, by streams."""
        messages: list[dict[str, str]] = []
        for _ in range(3):
            messages.append({"role": "user", "content": self._question()})
            text = "".join(self._stream({"messages": messages, "max_tokens": 48, "temperature": 0.7}))
            messages.append({"role": "assistant", "content": text})

    def grammar(self) -> None:
        """Ask for an object of a schema."""
        form = {"type": "json_schema", "json_schema": {"name": "ticket", "schema": _SCHEMA}}
        choice = self._choice({"response_format": form, "max_tokens": 120})
        _check_object(choice["message"]["content"])

    def tool(self) -> None:
        """Ask for a call of a tool."""
        forced = {"tools": [_TOOL], "tool_choice": "required", "parallel_tool_calls": False}
        choice = self._choice({**forced, "max_tokens": 200})
        _check_object(choice["message"]["tool_calls"][0]["function"]["arguments"])

    def cancelled(self) -> None:
        """Leave a stream after some pieces."""
        pieces = self._stream({"max_tokens": 400, "messages": self._asked()})
        for _ in range(self._chance.randrange(1, 12)):
            next(pieces, None)
        pieces.close()

    def long(self) -> None:
        """Ask for several hundred tokens after a long text."""
        text = " ".join(self._question() for _ in range(40))
        asked = {"model": _MODEL, "prompt": text, "max_tokens": 400, "temperature": 1}
        answer = json.loads(self._post("/v1/completions", asked))
        tokens, text = answer["usage"]["completion_tokens"], answer["choices"][0]["text"]
        if not text and tokens != 1:  # the first token that is drawn may be the one that ends an answer
            raise ProtocolError(f"a long answer of {tokens} tokens has no text")

    def ollama(self) -> None:
        """Ask in Ollama's dialect, by a stream."""
        asked = {"model": _MODEL, "messages": self._asked(), "options": {"num_predict": 32}}
        lines = self._post("/api/chat", asked).splitlines()
        if not json.loads(lines[-1])["done"]:
            raise ProtocolError("the last line of a stream is not done")

    def bad(self) -> None:
        """Send a request that has to be refused."""
        body = self._chance.choice(_REFUSED)
        connection = self._connected("/v1/chat/completions", body)
        try:
            status = connection.getresponse().status
        finally:
            connection.close()
        if not 400 <= status < 500:
            raise ProtocolError(f"a bad request was answered with {status}: {body[:200]!r}")

    def _question(self) -> str:
        return f"{self._chance.choice(_QUESTIONS)} ({self._chance.randrange(1000)})"

    def _asked(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self._question()}]

    def _choice(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        body = {"model": _MODEL, "messages": self._asked(), "temperature": 0.7, **asked}
        choice: dict[str, Any] = json.loads(self._post("/v1/chat/completions", body))["choices"][0]
        return choice

    def _stream(self, asked: Mapping[str, Any]) -> Generator[str, None, None]:
        """Yield the pieces of an answer; the connection is closed when the caller stops."""
        body = json.dumps({"model": _MODEL, "stream": True, **asked}).encode()
        connection = self._connected("/v1/chat/completions", body)
        try:
            answer = connection.getresponse()
            if answer.status != 200:
                raise ProtocolError(f"the gateway answered {answer.status}: {answer.read()[:500]!r}")
            for event in events(answer):
                if event["choices"]:
                    yield event["choices"][0]["delta"].get("content") or ""
        finally:
            connection.close()

    def _post(self, path: str, asked: Mapping[str, Any]) -> bytes:
        connection = self._connected(path, json.dumps(asked).encode())
        try:
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise ProtocolError(f"the gateway answered {answer.status}: {text[:500]!r}")
        return text

    def _connected(self, path: str, body: bytes) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=REQUEST_S)
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        return connection


OPERATIONS: Mapping[str, tuple[Callable[[SoakClient], None], int]] = {
    "chat": (SoakClient.chat, 4),
    "grammar": (SoakClient.grammar, 3),
    "tool": (SoakClient.tool, 3),
    "cancelled": (SoakClient.cancelled, 4),
    "long": (SoakClient.long, 1),
    "ollama": (SoakClient.ollama, 2),
    "bad": (SoakClient.bad, 3),
}
"""The operations by name, each with how often it is chosen beside the others."""


def _check_object(text: str) -> None:
    found = json.loads(text)
    if set(found) != set(_PROPERTIES):
        raise ProtocolError(f"an object has {sorted(found)}, and not the properties of its schema")
