"""The same request through HTTP and through the client for gRPC, with the times of what comes back."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flowedge.client import Client
from flowedge.core.errors import ProtocolError

REQUEST_S = 300.0
_DATA = b"data: "
_DONE = b"[DONE]"


@dataclass(frozen=True)
class AskedTimes:
    """Times of one answer, in seconds.

    Attributes:
        first: from the request to the first token.
        between: mean from one token to the next.
    """

    first: float
    between: float


class HttpAsker:
    """Asks a gateway, over one connection that stays open."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=REQUEST_S)

    def ask(self, prompt: str, tokens: int) -> AskedTimes:
        """Ask for an answer of so many tokens.

        Raises:
            ProtocolError: when the gateway answers with an error.
        """
        asked = {"model": "bundled", "prompt": prompt, "max_tokens": tokens, "stream": True}
        body = json.dumps({**asked, "ignore_eos": True, "temperature": 0})
        began = time.perf_counter()
        self._connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        if answer.status != 200:
            raise ProtocolError(f"the gateway answered {answer.status}: {answer.read()[:500]!r}")
        first = last = 0.0
        while line := answer.readline():
            if not line.startswith(_DATA) or line[len(_DATA) :].startswith(_DONE):
                continue
            choice = json.loads(line[len(_DATA) :])["choices"][0]
            if choice["finish_reason"] is None:
                last = time.perf_counter()
                first = first or last
        return _times(began, first, last, tokens)

    def get(self, path: str) -> float:
        """Ask for a page; return the seconds that it took."""
        began = time.perf_counter()
        self._connection.request("GET", path)
        self._connection.getresponse().read()
        return time.perf_counter() - began

    def close(self) -> None:
        self._connection.close()


@contextmanager
def http_asker(address: str) -> Iterator[HttpAsker]:
    """Yield an asker of the gateway at an address."""
    host, _, port = address.rpartition(":")
    asker = HttpAsker(host, int(port))
    try:
        yield asker
    finally:
        asker.close()


def ask_directly(client: Client, prompt: str, tokens: int) -> AskedTimes:
    """Ask a draft node for an answer of so many tokens."""
    first = last = 0.0
    began = time.perf_counter()
    answer = client.generate(text=prompt, max_new_tokens=tokens, ignore_eos=True)
    for chunk in answer:
        if chunk.token_ids:
            last = time.perf_counter()
            first = first or last
    return _times(began, first, last, tokens)


def _times(began: float, first: float, last: float, tokens: int) -> AskedTimes:
    return AskedTimes(first - began, (last - first) / max(tokens - 1, 1))
