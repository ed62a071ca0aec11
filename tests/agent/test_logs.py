"""The agent's log: one line an event, and one id for a request on all devices."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from flowedge import Client
from flowedge.agent.logs import JsonFormatter, TextFormatter, goes_to_journal
from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.ids import check_request_id, request_of, session_of
from flowedge.core.log_fields import about
from flowedge.network.log_rate import LINES
from tests.cluster.raw_caller import RawCaller
from tests.support.processes import AgentProcess, agents
from tests.support.stage_config import assembled
from tests.support.waiting import await_that


def record(message: str, *arguments: object, **changes: object) -> logging.LogRecord:
    made = logging.LogRecord("flowedge.x", logging.WARNING, "x.py", 1, message, arguments, None)
    made.created = 1.5
    made.__dict__.update(changes)
    return made


def test_a_line_of_text_or_json_has_the_same_fields() -> None:
    made = record("%s spoke", "v1", **about(event="link_lost", peer='a "b"\nc', seconds=0.12345))
    assert TextFormatter().format(made) == (
        "1970-01-01T00:00:01.500Z warning flowedge.x: v1 spoke peer=\"a 'b'\\nc\" seconds=0.123"
    )
    assert list(json.loads(JsonFormatter("d0").format(made)).items()) == [
        ("ts", "1970-01-01T00:00:01.500Z"),
        ("level", "warning"),
        ("logger", "flowedge.x"),
        ("device", "d0"),
        ("message", "v1 spoke"),
        ("event", "link_lost"),
        ("peer", 'a "b"\nc'),
        ("seconds", 0.12345),
    ]


def test_an_exception_stays_on_its_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        made = record("\x1b[2J bad\n", exc_info=sys.exc_info())
    text, line = TextFormatter().format(made), JsonFormatter("d0").format(made)
    assert text.isprintable()
    assert "ValueError: two\\nlines" in text
    assert "\n" not in line
    assert "ValueError: two\nlines" in json.loads(line)["exception"]


def test_journald_is_told_the_priority_and_not_the_time() -> None:
    made = record("hot")
    assert TextFormatter(prioritised=True).format(made) == "<4>flowedge.x: hot"
    made.levelno = logging.INFO
    assert JsonFormatter("d0", prioritised=True).format(made).startswith('<6>{"ts"')


def test_only_the_journals_own_stream_is_the_journal() -> None:
    reading, writing = os.pipe()
    try:
        found = os.fstat(writing)
        stream = f"{found.st_dev}:{found.st_ino}"
        assert goes_to_journal(writing, {"JOURNAL_STREAM": stream})
        assert not goes_to_journal(writing, {"JOURNAL_STREAM": "1:2"})
        assert not goes_to_journal(writing, {})
    finally:
        os.close(reading)
        os.close(writing)


def test_a_session_is_named_after_its_request() -> None:
    assert request_of(session_of("r-1")) == "r-1"
    assert session_of("r-1") != session_of("r-1")
    assert request_of("trainer-0") == "trainer-0"
    assert check_request_id("x" * 48) == "x" * 48
    for bad in ("", "a.b", "a b", "a\n", "x" * 49):
        with pytest.raises(BadRequestError, match="request id"):
            check_request_id(bad)


@pytest.fixture
def pipeline(idle_agents: list[AgentProcess]) -> list[AgentProcess]:
    """A draft node and two stages."""
    assembled(idle_agents[:3])
    return idle_agents[:3]


def events(agent: AgentProcess) -> list[dict[str, Any]]:
    """Return the events in an agent's log; lines that are not JSON are left out."""
    return [json.loads(line) for line in agent.lines if line.startswith("{")]


def of_request(request: str, agent: AgentProcess) -> list[dict[str, Any]]:
    """Its events; the client may know of the end before the draft node has logged it."""
    deadline = time.monotonic() + 60
    while True:
        found = [event for event in events(agent) if event.get("request") == request]
        if any(event["event"] == "session_closed" for event in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def test_one_request_is_found_in_the_logs_of_every_device(pipeline: list[AgentProcess]) -> None:
    with Client(pipeline[0].address) as client:
        generation = client.generate("Hello", max_new_tokens=4, ignore_eos=True, request_id="mine-1").result()
        with pytest.raises(CapacityError, match=r"\(request big-1\)$"):
            client.generate("Hello", max_new_tokens=10**6, request_id="big-1").result()
        nameless = client.generate("Hello", strategy="magic")
        with pytest.raises(BadRequestError, match=nameless.request_id):
            nameless.result()
    assert generation.session.startswith("mine-1.")
    for agent in pipeline:
        mine, logged = of_request("mine-1", agent), events(agent)
        assert {event["device"] for event in logged} == {agent.name}
        assert [event["event"] for event in mine] == ["session_opened", "session_closed"]
        assert {event["session"] for event in mine} == {generation.session}
        role = [event for event in logged if event.get("pipeline") == mine[0]["pipeline"]]
        chosen = [event["verification"] for event in role if event["event"] == "verification"]
        assert set(chosen) <= {"draft-node", "last-stage"} and len(chosen) == (agent is pipeline[0])
        kinds = [event["event"] for event in role if event["event"] != "verification"]
        assert kinds[:2] == ["role_taken", "role_loaded"]
        assert mine[1]["reason"] == ("length" if agent is pipeline[0] else "the draft node closed it")
        assert mine[1]["new_tokens" if agent is pipeline[0] else "rows_computed"] >= 4
    refused = [event for event in events(pipeline[0]) if event.get("event") == "request_refused"]
    assert [(event["request"], event["code"]) for event in refused[-2:]] == [
        ("big-1", "context_length"),
        (nameless.request_id, "bad_request"),
    ]


def test_under_systemd_the_journal_gets_one_line_with_a_priority() -> None:
    reading, writing = os.pipe()
    found = os.fstat(writing)
    program = (
        "import sys, logging; from flowedge.agent.agent_config import LogSettings;"
        "from flowedge.agent.logs import set_up_logs;"
        "set_up_logs(LogSettings(), 'd0'); logging.getLogger('flowedge').warning('hot\\nwater')"
    )
    environment = {**os.environ, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
    try:
        subprocess.run(
            [sys.executable, "-c", program], stderr=writing, env=environment, check=True, timeout=60
        )
    finally:
        os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "<4>flowedge: hot\\nwater\n"


def test_the_error_that_ends_an_agent_is_a_line_of_the_log() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent = AgentProcess("d0", "--no-advertise", "--log-format", "json", port=port)
        agent.start()
        try:
            assert agent.wait() == 1
        finally:
            agent.stop()
    records = [json.loads(line) for line in agent.lines]
    assert [(each["level"], each["logger"]) for each in records][-1] == ("error", "flowedge.cli")
    assert str(port) in records[-1]["message"]
    agent.remove()


def test_bad_headers_flood_no_log() -> None:
    """gRPC itself writes a line of each header that is no text; a few of them a minute are enough."""
    with agents(["flooded"]) as (agent,):
        caller = RawCaller(agent.address, None, plaintext=True)
        try:
            for _ in range(60):
                stream = caller.call("/flowedge.v1.Agent/Describe", extra=b"\xff\xfe" * 8)
                caller.reset(stream)
            agent.describe()
        finally:
            caller.close()
        await_that(lambda: any("Invalid encoding" in line for line in agent.lines))
        agent.describe()
        assert sum("Invalid encoding" in line for line in agent.lines) <= LINES
