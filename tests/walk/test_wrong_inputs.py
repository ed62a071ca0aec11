"""Wrong inputs of whole commands: one line says what is wrong and what to do, before anything starts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.walk.commands import EndedCommand, UserHome

ALONE = ("generate", "--stages", "2", "--prompt", "Hi")
HERE = (*ALONE, "--model", "bundled")
NGRAM = (*ALONE, "--drafter", "ngram")


@dataclass(frozen=True)
class WrongInput:
    """A command that cannot be carried out.

    Attributes:
        arguments: SERVER stands for the address of an HTTP server.
        said: parts of the complaint: the wrong thing, and what to do.
        codes: exit codes that are right; 2 is wrong usage, 1 another failure.
    """

    name: str
    arguments: tuple[str | bytes, ...]
    said: tuple[str, ...]
    codes: tuple[int, ...] = (2,)
    stdin: bytes = b""
    unsaid: tuple[str, ...] = ()


WRONG = [
    # Mistakes that are known at once.
    WrongInput("split sum", (*HERE, "--split", "5,5"), ("5,5", "10", "8")),
    WrongInput("split zero", (*HERE, "--split", "8,0"), ("8,0", "layer")),
    WrongInput("split count", (*HERE, "--split", "4,2,2"), ("4,2,2", "3 stages", "2")),
    WrongInput("split text", (*HERE, "--split", "four"), ("four", "2,3,3")),
    WrongInput("more stages than layers", (*HERE[:2], "9", *HERE[3:]), ("9 stages", "8")),
    WrongInput("demo stages", ("demo", "--stages", "9"), ("9 stages", "8")),
    WrongInput("drafter path", (*HERE, "--drafter", "/nowhere"), ("/nowhere", "hub id")),
    WrongInput("drafter word", (*HERE, "--drafter", "eagel"), ("eagel", "bundled")),
    WrongInput("model path", (*NGRAM, "--model", "/nowhere"), ("/nowhere", "hub id"), (1, 2)),
    WrongInput("model folder", (*NGRAM, "--model", "empty"), ("empty", "directory"), (1, 2)),
    WrongInput("GGUF as a folder", (*NGRAM, "--model", "a.gguf"), ("a.gguf", "directory"), (1, 2)),
    WrongInput("folder of a GGUF file", (*NGRAM, "--model", "ggufs"), ("ggufs", "b.gguf"), (1, 2)),
    WrongInput("no GGUF file", (*NGRAM, "--model", "no.gguf"), ("no.gguf", "GGUF"), (1, 2)),
    # Boards and clusters.
    WrongInput(
        "agent for all", ("agent", "--host", "0.0.0.0"), ("0.0.0.0", "flowedge join", "--insecure"), (1, 2)
    ),
    WrongInput("no credentials", ("devices", "--cluster-dir", "empty"), ("empty", "flowedge join")),
    WrongInput(
        "bench without credentials",
        ("bench", "paced", "--out", "runs", "--cluster-dir", "empty"),
        ("empty", "flowedge join"),
    ),
    WrongInput("token", ("join", "-"), ("flowedge1-", "flowedge cluster token"), stdin=b"nonsense\n"),
    WrongInput("role", ("cluster", "token", "--role", "king"), ("king", "client"), unsaid=("Value error",)),
    # The gateway and the chat.
    WrongInput(
        "port in use",
        ("serve", "--model", "bundled", "--stages", "2", "--listen", "SERVER"),
        ("in use", "another port", "--listen"),
        (1,),
    ),
    WrongInput(
        "gateway for all",
        ("serve", "--model", "bundled", "--stages", "2", "--listen", "0.0.0.0:8000"),
        ("beyond loopback", "flowedge serve keys add", "--no-keys"),
    ),
    WrongInput("address of a gateway", ("serve", "--listen", "8000"), ("8000", "ADDRESS:PORT")),
    WrongInput("gateway stages", ("serve", "--model", "bundled", "--stages", "9"), ("9 stages", "8")),
    WrongInput("pipelines file", ("serve", "--pipelines", "missing.toml"), ("missing.toml", "no file")),
    WrongInput("pipelines of bytes", ("serve", "--pipelines", "latin.toml"), ("latin.toml", "UTF-8")),
    WrongInput(
        "priority of a key",
        ("serve", "keys", "add", "anna", "--priority", "king"),
        ("king", "interactive"),
        unsaid=("Value error",),
    ),
    WrongInput("key that is not there", ("serve", "keys", "remove", "bob"), ("no key 'bob'", "none")),
    WrongInput("conversation", ("chat", "--load", "missing.json"), ("missing.json", "No such file", "saved")),
    WrongInput("conversation of bytes", ("chat", "--load", "latin.jsonl"), ("latin.jsonl", "cannot be read")),
    # Types, names and files.
    WrongInput("misspelt option", (*HERE, "--temprature", "1"), ("--temprature", "--temperature")),
    WrongInput("misspelt command", ("generat",), ("generat", "generate")),
    WrongInput("bytes in a prompt", (*ALONE[:-1], b"caf\xe9"), ("--prompt", "UTF-8")),
    WrongInput("bytes in a file", ("generate", "--prompts", "latin.jsonl"), ("latin.jsonl", "UTF-8")),
    WrongInput("no prompts file", ("generate", "--prompts", "missing.jsonl"), ("missing.jsonl",)),
    WrongInput("config of bytes", ("agent", "--config", "latin.toml"), ("latin.toml", "UTF-8", "save")),
    WrongInput("config unclosed", ("agent", "--config", "open.toml"), ("open.toml", "invalid value")),
    WrongInput("config folder", ("agent", "--config", "empty"), ("empty", "directory")),
    WrongInput("config missing", ("agent", "--config", "missing.toml"), ("missing.toml", "No such file")),
    WrongInput(
        "HTTP server",
        ("release", "SERVER"),
        ("SERVER", "FlowEdge agent"),
        (1, 2),
        unsaid=("SETTINGS", "UNAVAILABLE"),
    ),
    WrongInput(
        "HTTP server as a peer",
        ("generate", "--prompt", "Hi", "--peers", "SERVER,127.0.0.1:1"),
        ("SERVER", "FlowEdge agent"),
        (1, 2),
        unsaid=("SETTINGS", "UNAVAILABLE"),
    ),
]


class _Silent(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Leave the test's output alone."""


@pytest.fixture(scope="module")
def http_server() -> Iterator[str]:
    """The address of an HTTP server that is no agent."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Silent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> UserHome:
    """A home with files that are not what their names promise."""
    path = tmp_path_factory.mktemp("home")
    for folder in ("empty", "a.gguf", "ggufs"):
        (path / folder).mkdir()
    (path / "ggufs" / "b.gguf").write_bytes(b"GGUF")
    (path / "no.gguf").write_bytes(b"not a model")
    (path / "latin.jsonl").write_bytes(b'{"prompt": "caf\xe9"}\n')
    (path / "latin.toml").write_bytes(b'name = "caf\xe9"\n')
    (path / "open.toml").write_text("peers = [\n", encoding="utf-8")
    return UserHome(path)


def check_refusal(ended: EndedCommand, wrong: WrongInput, server: str) -> None:
    """Assert that nothing was started or printed but one line that says what is wrong."""
    assert len(ended.started) == 1, f"processes were started: {ended.started[1:]}"
    assert not ended.torch, "PyTorch was imported before the complaint"
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    complaint = ended.complaint
    for part in wrong.said:
        assert part.replace("SERVER", server).lower() in complaint.lower()
    for part in wrong.unsaid:
        assert part not in complaint
    assert ended.code in wrong.codes


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_input_is_refused_at_once(wrong: WrongInput, home: UserHome, http_server: str) -> None:
    given = [
        part.replace("SERVER", http_server) if isinstance(part, str) else part for part in wrong.arguments
    ]
    check_refusal(home.flowedge(*given, stdin=wrong.stdin, alone=True), wrong, http_server)


def test_a_command_that_starts_a_process_is_seen_and_ended(home: UserHome) -> None:
    ended = home.python("import subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'])")
    assert len(ended.started) == 2
    assert ended.torch
    assert len(home.flowedge(*HERE, alone=True).started) > 1
    with pytest.raises(TimeoutError):
        home.python("import time; time.sleep(60)", deadline_s=1)
