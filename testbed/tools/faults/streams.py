"""Streams of a gateway before the draft node, as a program asks for them by HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Iterator
from typing import Any

from flowedge.core.errors import ProtocolError

REQUEST_S = 600.0
_PATH = "/v1/completions"
_DRAWN = {"temperature": 1.0, "top_p": 0.9, "seed": 4}
REQUESTS: tuple[dict[str, Any], ...] = (
    {"prompt": "Tell me of a river.", "max_tokens": 200, "ignore_eos": True, "temperature": 0.0},
    {"prompt": "How do you mend a net?", "max_tokens": 64, "temperature": 0.0},
    {"prompt": "Write a letter to a friend.", "max_tokens": 250, "ignore_eos": True, **_DRAWN},
)


def events(answer: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream, given by its lines.

    Raises:
        ProtocolError: when one is an error, or the stream has no proper end.
    """
    for line in answer:
        if line.startswith(b"data: [DONE]"):
            return
        if line.startswith(b"data: "):
            event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                raise ProtocolError(f"a stream ended with {event['error']}")
            yield event
    raise ProtocolError("a stream ended without [DONE]")


def pieces(address: str, asked: dict[str, Any]) -> Iterator[str]:
    """Yield the pieces of a completion's text.

    Raises:
        ProtocolError: when the gateway answers with an error, or the stream has no proper end.
        OSError, http.client.HTTPException: when the connection is lost.
    """
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=REQUEST_S)
    body = json.dumps({"model": "bundled", "stream": True, **asked})
    try:
        connection.request("POST", _PATH, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ProtocolError(f"the gateway answered {answer.status}: {answer.read()[:300]!r}")
        yield from (choice["text"] for event in events(answer) for choice in event["choices"])
    finally:
        connection.close()
