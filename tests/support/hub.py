"""A hub of models on loopback, which serves directories by the hub's HTTP interface."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_COMMIT = hashlib.sha1(b"the only commit of each repository", usedforsecurity=False).hexdigest()


class _Server(ThreadingHTTPServer):
    repositories: Mapping[str, Path]
    gated: Collection[str]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        if any(f"/{name}/" in self.path for name in self.server.gated):
            self._refuse(403, "GatedRepo")
            return
        body = self._listing() if self.path.startswith("/api/models/") else self._file()
        if body is None:
            self._refuse(404, "RepoNotFound")
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", _COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _listing(self) -> bytes | None:
        """Answer what a repository holds: its revision, or the tree of it."""
        name, kind, _ = re.split(r"/(revision|tree)/", self.path.removeprefix("/api/models/"), maxsplit=1)
        directory = self.server.repositories.get(name)
        if directory is None:
            return None
        files = sorted(directory.iterdir())
        if kind == "tree":
            return json.dumps([_entry(file) for file in files]).encode()
        siblings = [{"rfilename": file.name} for file in files]
        return json.dumps({"id": name, "sha": _COMMIT, "siblings": siblings}).encode()

    def _file(self) -> bytes | None:
        name, _, rest = self.path.removeprefix("/").partition("/resolve/")
        directory, file = self.server.repositories.get(name), rest.partition("/")[2]
        if directory is None or file not in {found.name for found in directory.iterdir()}:
            return None
        return (directory / file).read_bytes()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (the base class's name)
        pass


def _entry(file: Path) -> dict[str, str | int]:
    digest = hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
    return {"type": "file", "oid": digest, "size": file.stat().st_size, "path": file.name}


@contextmanager
def hub(repositories: Mapping[str, Path], gated: Collection[str] = ()) -> Iterator[str]:
    """Serve the files of each repository (owner/name), and yield the URL for HF_ENDPOINT.

    gated: repositories that are refused to people who did not log in.
    """
    server = _Server(("127.0.0.1", 0), _Handler)
    server.repositories, server.gated = repositories, gated
    thread = threading.Thread(target=server.serve_forever, args=(0.1,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
