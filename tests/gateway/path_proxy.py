"""A proxy as nginx is with `location /llm/ { proxy_pass http://gateway/; }`, and TLS ended before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FORWARDED_FOR = "203.0.113.9"
_ANSWER_S = 60.0
_OWN = frozenset({"connection", "transfer-encoding", "content-length", "date"})


@dataclass(frozen=True)
class PathProxy:
    """Where the proxy is."""

    url: str


@contextmanager
def proxy_before(gateway: tuple[str, int], path: str) -> Iterator[PathProxy]:
    """A proxy that offers a gateway below a path, to clients that it calls FORWARDED_FOR, with HTTPS."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, gateway, path)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield PathProxy(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, gateway: tuple[str, int], path: str, *more: Any) -> None:
        self._gateway, self._below = gateway, path
        super().__init__(*more)

    def _pass_on(self) -> None:
        if not self.path.startswith(f"{self._below}/"):
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {**self.headers, "X-Forwarded-For": FORWARDED_FOR, "X-Forwarded-Proto": "https"}
        onward = HTTPConnection(*self._gateway, timeout=_ANSWER_S)
        try:
            onward.request(self.command, self.path.removeprefix(self._below), body or None, headers)
            answer = onward.getresponse()
            content = answer.read()
        finally:
            onward.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OWN:
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _pass_on  # noqa: N815 (as http.server calls them)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""
