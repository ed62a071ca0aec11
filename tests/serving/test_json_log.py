"""`flowedge serve --log-format json`: every line on standard error is a JSON object."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.asking import COMPLETIONS, body
from tests.support.gateways import ANSWER_S, GatewayProcess
from tests.support.processes import CLI

END_S = 60.0


def _writing_to(output: Path, *options: str, listen: str = "127.0.0.1:0") -> GatewayProcess:
    """Return a gateway whose lines are those of standard error."""
    command = ["sh", "-c", f'exec "$@" >{output}', "sh", *CLI]
    return GatewayProcess(*options, "--log-format", "json", listen=listen, command=command)


def _records(gateway: GatewayProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gateway.lines]


def test_a_start_a_request_and_a_stop(tmp_path: Path) -> None:
    output = tmp_path / "output"
    gateway = _writing_to(output, "--stages", "1", "--no-keys", listen="0.0.0.0:0")
    gateway.start()
    try:
        url = json.loads(gateway.line('"event": "started"'))["address"]
        answer = httpx.post(url.rstrip("/") + COMPLETIONS, json=body(2), timeout=ANSWER_S, trust_env=False)
        assert answer.status_code == 200, answer.text
        gateway.signal(signal.SIGTERM)
        assert gateway.wait(END_S) == 0
    finally:
        gateway.stop()
    records = _records(gateway)
    events = [record["event"] for record in records if "event" in record]
    assert [event for event in events if event in ("started", "http_request", "stopping")] == [
        "started",
        "http_request",
        "stopping",
    ]
    own = {record["message"]: record["level"] for record in records if record["logger"] == "flowedge.cli"}
    assert [level for text, level in own.items() if text.startswith("--no-keys: anyone")] == ["warning"]
    assert [level for text, level in own.items() if "starting a draft node and 1 stage" in text] == ["info"]
    assert output.read_text(encoding="utf-8").startswith("flowedge serve: listening on ")
    gateway.remove()


@pytest.mark.parametrize(
    "peer", [False, True], ids=["its port is taken", "nobody is at the address of a peer"]
)
def test_a_start_that_fails(tmp_path: Path, peer: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and nobody listens
        port = (silent if peer else taken).getsockname()[1]
        options = ("--peers", f"127.0.0.1:{port}") if peer else ()
        listen = "127.0.0.1:0" if peer else f"127.0.0.1:{port}"
        gateway = _writing_to(tmp_path / "output", *options, listen=listen)
        gateway.start()
        try:
            assert gateway.wait(END_S) == 1
        finally:
            gateway.stop()
    last = _records(gateway)[-1]
    assert (last["level"], last["logger"]) == ("error", "flowedge.cli")
    assert str(port) in last["message"]
    gateway.remove()
