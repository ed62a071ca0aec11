"""`flowedge serve --log-format json`: every line on standard error is a JSON object."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import httpx
import pytest

from flowedge.cli.main import EXIT_FAILURE
from tests.gateway.asking import COMPLETIONS, body
from tests.support.gateways import ANSWER_S, GatewayProcess, refused_start
from tests.support.processes import CLI, running

END_S = 60.0


def test_a_start_a_request_and_a_stop(tmp_path: Path, cluster4: str) -> None:
    output = tmp_path / "output"
    command = ["sh", "-c", f'exec "$@" >{output}', "sh", *CLI]  # its lines are those of standard error
    options = ("--no-keys", "--log-format", "json")
    gateway = GatewayProcess(*options, peers=[cluster4], listen="0.0.0.0:0", command=command)
    gateway.start()
    try:
        url = json.loads(gateway.line('"event": "started"'))["address"]
        gateway.line('"event": "pipeline_ready"')
        answer = httpx.post(url.rstrip("/") + COMPLETIONS, json=body(2), timeout=ANSWER_S, trust_env=False)
        assert answer.status_code == 200, answer.text
        gateway.signal(signal.SIGTERM)
        assert gateway.wait(END_S) == 0
    finally:
        gateway.stop()
    records = [json.loads(line) for line in gateway.lines]
    events = [record["event"] for record in records if "event" in record]
    assert [event for event in events if event in ("started", "http_request", "stopping")] == [
        "started",
        "http_request",
        "stopping",
    ]
    own = {record["message"]: record["level"] for record in records if record["logger"] == "flowedge.cli"}
    assert [level for text, level in own.items() if text.startswith("--no-keys: anyone")] == ["warning"]
    assert output.read_text(encoding="utf-8").startswith("flowedge serve: listening on ")
    gateway.remove()


@pytest.mark.parametrize(
    "peer", [False, True], ids=["its port is taken", "nobody is at the address of a peer"]
)
def test_a_start_that_fails(peer: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and nobody listens
        port = (silent if peer else taken).getsockname()[1]
        peers = [f"127.0.0.1:{port}"] if peer else []
        listen = "127.0.0.1:0" if peer else f"127.0.0.1:{port}"
        code, lines = refused_start(GatewayProcess("--log-format", "json", peers=peers, listen=listen))
    assert code == EXIT_FAILURE
    last = [json.loads(line) for line in lines if line.startswith("{")][-1]  # others are on standard output
    assert (last["level"], last["logger"]) == ("error", "flowedge.cli")
    assert str(port) in last["message"]


@pytest.mark.proof
def test_the_start_of_agents_is_told() -> None:
    gateway = GatewayProcess("--model", "bundled", "--stages", "1", "--log-format", "json")
    with running(gateway):
        told = json.loads(gateway.line("starting one agent"))
    assert (told["level"], told["logger"]) == ("info", "flowedge.cli")
