"""No text from outside commands the terminal of a person, whoever sends it and in whichever field."""

from __future__ import annotations

import datetime
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.certificates import new_key
from flowedge.cluster.member import holder_of
from flowedge.core.errors import AccessError
from flowedge.v1 import agent_pb2_grpc
from tests.cluster.clusters import Cluster, now
from tests.cluster.nasty_agent import DESCRIBE, FORGED, NASTY, fill, nasty_agent, services, texts
from tests.cluster.terminals import assert_safe, on_terminal
from tests.cluster.test_multicast import sent_again_and_again
from tests.discovery.fake_agents import fields
from tests.discovery.packets import announcement
from tests.support.breadth import dealt
from tests.support.free_ports import free_ports
from tests.support.stage_config import stage_config, stage_role

SERVICES = ("Agent", "Generation", "Measure", "Weights")
HASH = "sha256:" + "0" * 64
LEFT_OUT = {"flowedge.v1.Enrolment", "flowedge.v1.Renewal", "flowedge.v1.Pipeline"}
"""Services that no command calls at an agent, or whose texts never leave the agent but in errors."""


AGENT, GENERATION, MEASURE, WEIGHTS = (f"flowedge.v1.{name}" for name in SERVICES)
CALLED = {
    "devices": {AGENT},
    "devices --json": {AGENT},
    "devices --rate": {AGENT, MEASURE},
    "doctor": {AGENT},
    "models": {WEIGHTS},
    "models pull": {WEIGHTS},
    "generate": {AGENT, GENERATION},
    "generate on several": {AGENT},
    "release": {AGENT},
    "profile of busy agents": {AGENT},
    "profile": {AGENT, MEASURE},
    "train-drafter": {AGENT, WEIGHTS},
}
"""The services that each command calls."""
FIELDS = ("cluster", "id", "name", "kind", "version", "instance", "compute", "memory")
BUNDLED = ("--model", "bundled")
QUICK = {"devices", "generate", "models"}  # tested by `make test`; the others by `make proof`
AGAIN_AND_AGAIN = {"models pull", "train-drafter"}  # which ask for a minute, or load a model before


def arguments_of(command: str, busy: str, first: str, second: str, directory: Path) -> list[str]:
    """Return the command line; busy: an agent with a role; first, second: agents without a role."""
    data = directory / "data.jsonl"
    data.write_text('{"text": "a few words to train on"}\n' * 40, encoding="utf-8")
    cache, out = ["--cache-dir", str(directory / "cache")], str(directory / "out")
    return {
        "devices": ["devices", "--peers", f"{busy},{first}"],
        "devices --json": ["devices", "--peers", busy, "--json"],
        "devices --rate": ["devices", "--peers", f"{first},{second}", "--rate"],
        "doctor": ["doctor", "--peer", busy, "--no-libraries"],
        "models": ["models", "--peers", busy, *cache],
        "models pull": ["models", "pull", HASH, "--from", busy, *cache],
        "generate": ["generate", "--peers", busy, "--prompt", "hello"],
        "generate on several": ["generate", *BUNDLED, "--peers", f"{busy},{first}", "--prompt", "hello"],
        "release": ["release", busy],
        "profile of busy agents": ["profile", busy, "--out", out],
        "profile": ["profile", first, second, "--out", out],
        "train-drafter": ["train-drafter", "bundled", "--data", str(data), "--out", out, "--peers", busy],
    }[command]


@pytest.mark.slow
@pytest.mark.parametrize("command", dealt(CALLED, QUICK.__contains__))
def test_no_reply_of_an_agent_commands_the_terminal(command: str, tmp_path: Path) -> None:
    environment = {"FLOWEDGE_STATE_DIR": str(tmp_path / "state")}
    with (
        nasty_agent() as (one, busy),
        nasty_agent(idle=True) as (two, first),
        nasty_agent(idle=True) as (three, second),
    ):
        arguments = arguments_of(command, busy, first, second, tmp_path)
        shown = on_terminal(*arguments, environment=environment)
    assert shown.strip()
    assert_safe(shown, answers=command == "generate")
    assert {path.split("/")[1] for path in one.called | two.called | three.called} >= CALLED[command]


@pytest.mark.slow
@pytest.mark.parametrize("command", dealt(sorted(CALLED.keys() - AGAIN_AND_AGAIN), QUICK.__contains__))
def test_no_error_of_an_agent_commands_the_terminal(command: str, tmp_path: Path) -> None:
    environment = {"FLOWEDGE_STATE_DIR": str(tmp_path / "state")}
    with (
        nasty_agent(lambda _: True) as (_, busy),
        nasty_agent(lambda _: True, idle=True) as (_, first),
        nasty_agent(lambda path: path != DESCRIBE, idle=True) as (_, second),
    ):
        arguments = arguments_of(command, busy, first, second, tmp_path)
        shown = on_terminal(*arguments, environment=environment)
    # The doctor shows a finding instead of an error that is no agent's.
    assert "owned" in shown or command == "doctor", "the error was shown"
    assert_safe(shown)


def test_the_commands_call_every_service() -> None:
    assert set().union(*CALLED.values()) == {path.split("/")[1] for path, _ in services()} - LEFT_OUT


def test_errors_in_the_middle_of_a_pipeline_are_safe(tmp_path: Path) -> None:
    environment = {"FLOWEDGE_STATE_DIR": str(tmp_path / "state")}
    for path, others in (
        ("/flowedge.v1.Agent/BecomeDraftNode", ",127.0.0.1:9"),
        ("/flowedge.v1.Generation/Generate", ""),
    ):
        with nasty_agent(path.__eq__) as (one, first):
            arguments = ["generate", *BUNDLED, "--peers", f"{first}{others}", "--prompt", "hello"]
            shown = on_terminal(*arguments, environment=environment)
            assert "owned" in shown, "the error was shown"
            assert_safe(shown)
            assert path in one.called


def test_every_text_field_of_every_reply_was_nasty() -> None:
    for path, method in services():
        filled = [fill(grpc_message(method), which) for which in range(6)]
        nasty = {name for message in filled for name in nasty_texts(message)}
        assert nasty == texts(method.output_type), path


def grpc_message(method: object) -> object:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(method.output_type)()  # type: ignore[attr-defined]


def nasty_texts(message: object) -> Iterator[str]:
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        values = value if field.is_repeated else [value]
        for each in values:
            if field.message_type is not None:
                yield from nasty_texts(each)
            elif each == NASTY or (field.name in ("config", "sampling") and json.dumps(NASTY) in each):
                yield field.full_name


@pytest.mark.parametrize("field", dealt(FIELDS, {"name", "memory"}.__contains__))
def test_no_field_of_an_announcement_commands_the_terminal(field: str, tmp_path: Path) -> None:
    nasty = NASTY.replace("\n", "").replace("\r", "")
    packet = announcement("nasty", "127.0.0.1", 9, {**fields(0, "0" * 16), "name": "nasty", field: nasty})
    raw = announcement("nasty\x1b]0;x\x07", "127.0.0.1", 9, {**fields(0, "0" * 16)})
    environment = {"FLOWEDGE_STATE_DIR": str(tmp_path / "state")}
    with sent_again_and_again(packet, raw):
        assert_safe(on_terminal("devices", "--timeout", "0.5", environment=environment))


@contextmanager
def self_signed(uri: str, directory: Path) -> Iterator[str]:
    """A server with a certificate of its own making that names a URI; yields its address."""
    key = new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NASTY[:60])])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 7)
        .not_valid_before(now() - datetime.timedelta(days=1))
        .not_valid_after(now() + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    with pytest.raises(AccessError) as refused:
        holder_of(certificate)
    assert "\x1b" not in str(refused.value) and "owned" not in str(refused.value)
    pem = directory / "own.pem"
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    pem.write_bytes(private + certificate.public_bytes(encoding))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with suppress(OSError), context.wrap_socket(connection, server_side=True) as encrypted:
                    encrypted.recv(1)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.close()


COMMANDS_OF_A_TERMINAL = "\x1b]0;owned\x07\x1b[2J"


@pytest.mark.parametrize(
    "uri",
    [
        f"flowedge://{COMMANDS_OF_A_TERMINAL}/agent/kitchen",
        f"flowedge://0123456789abcdef/{COMMANDS_OF_A_TERMINAL}/kitchen",
        f"flowedge://0123456789abcdef/agent/{COMMANDS_OF_A_TERMINAL}",
        f"flowedge://0123456789abcdef\n{FORGED}/agent/kitchen",
        COMMANDS_OF_A_TERMINAL,
    ],
)
def test_no_certificate_commands_the_terminal(uri: str, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster", free_ports(2))
    state = cluster.member("admin", CertificateRole.ADMIN)
    with self_signed(uri, tmp_path) as address:
        shown = on_terminal("devices", "--peers", address, environment={"FLOWEDGE_STATE_DIR": str(state)})
    assert "refused to speak to" in shown
    assert_safe(shown)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_line_of_an_agents_log_commands_the_terminal(log_format: str, tmp_path: Path) -> None:
    asked = threading.Event()

    def ask(shown: str) -> bool:
        if "listening on" in shown and not asked.is_set():
            asked.set()
            address = shown.split("listening on ")[1].split(maxsplit=1)[0]
            with grpc.insecure_channel(address) as channel, suppress(grpc.RpcError):
                role = stage_role("p", config=stage_config(NASTY).to_json())
                list(agent_pb2_grpc.AgentStub(channel).BecomeStage(role, timeout=60))
        return "owned" in shown

    arguments = ["agent", "--port", "0", "--no-advertise", "--log-format", log_format]
    environment = {"FLOWEDGE_STATE_DIR": str(tmp_path), "FLOWEDGE_METRICS__ENABLED": "false"}
    shown = on_terminal(*arguments, environment=environment, until=ask)
    assert "owned" in shown
    assert_safe(shown)
