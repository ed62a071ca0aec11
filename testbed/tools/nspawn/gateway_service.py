"""The gateway as a service, set up by the commands of docs/gateway.md, and asked from another host."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from testbed.tools.nspawn import journal
from testbed.tools.nspawn.cluster import Cluster
from testbed.tools.nspawn.guide.document import GATEWAY, Document
from testbed.tools.nspawn.guide.person import Person
from testbed.tools.nspawn.host import Host
from testbed.tools.nspawn.installing import install_with_gateway
from testbed.tools.nspawn.waiting import check, until

UNIT = "flowedge-serve.service"
READY_S = 300.0  # from the pipeline on: the service is started again until it finds one
_SETTINGS = "/etc/flowedge/serve.toml"
_PORT = 8000
_SECTION = "As a service"
_TOKENS = 8


class GatewayService:
    """The gateway on one host of a cluster, and a person on another who has an API key."""

    def __init__(self, cluster: Cluster, checkout: Path, host: Host, asking: Host) -> None:
        self._cluster = cluster
        self._document = Document.read(checkout, GATEWAY)
        self._host, self._asking = host, asking
        self._url = f"http://{cluster.address(host)}:{_PORT}"
        self._key = ""

    def install(self) -> None:
        """Run install.sh --serve, which also starts the gateway, however little it can do so far."""
        install_with_gateway(self._host)
        enabled = self._host.run(["systemctl", "is-enabled", UNIT]).stdout.strip()
        check(enabled == "enabled", f"install.sh --serve left {UNIT} {enabled}")

    def join(self) -> None:
        """Make the gateway a client of the cluster, with an API key, and have it listen on all networks."""
        token, join, add, restart = self._document.commands(_SECTION, 1)
        person = Person(self._host)
        person.does(join, self._cluster.owner.does(token).stdout)
        self._key = person.does(add).stdout.strip()
        person.edits(_SETTINGS, {"http": {"listen": f'"0.0.0.0:{_PORT}"'}})
        person.does(f"{restart} --no-block")

    def serves(self, request: str) -> None:
        """Wait until the gateway is ready, and ask it; the request has this id."""
        until(lambda: self._status("/health/ready") == 200, READY_S, "/health/ready says 200")
        status = self._status("/v1/chat/completions", self._question())
        check(status == 401, f"a request without a key was answered with {status}")
        sent = self._fetch("/v1/chat/completions", self._question(), self._key, request)
        answer = json.loads(sent.stdout)
        check(answer.get("usage", {}).get("completion_tokens") == _TOKENS, f"the gateway's answer: {answer}")

    def stop(self) -> None:
        """Stop the gateway, which must end by itself and well."""
        self._host.run(["systemctl", "stop", UNIT])
        state = [self._property(name) for name in ("ActiveState", "Result", "ExecMainStatus")]
        check(state == ["inactive", "success", "0"], f"systemctl stop of the gateway ended as {state}")
        check(self._status("/health/live") == 0, "the gateway answers after systemctl stop")

    def start(self) -> None:
        """Start the gateway as the document does; it listens then."""
        (start,) = self._document.commands(_SECTION)
        Person(self._host).does(start)

    def restart(self) -> None:
        """Restart the gateway as the document does; it listens then."""
        Person(self._host).does(self._document.commands(_SECTION, 1)[-1])

    def check_journal(self, request: str) -> None:
        """Check that journald has the line of a request, with its fields, and neither errors nor the key.

        A process that started before there was a pipeline may have ended with an error, so only processes
        that have said which models they serve are judged.
        """
        output = self._host.run(["journalctl", "--no-pager", "--output=json", f"_SYSTEMD_UNIT={UNIT}"]).stdout
        check(self._key not in output, "journald has the API key")
        lines = [json.loads(line) for line in output.splitlines()]
        served = {line["_PID"] for line in lines if line["MESSAGE"].startswith("models: ")}
        # What the command says while it starts is text.
        events = [line for line in lines if line["_PID"] in served and line["MESSAGE"].startswith("{")]
        entries = journal.parse(self._host.name, "\n".join(map(json.dumps, events)))
        wrong = [entry.fields for entry in journal.errors(entries)]
        check(not wrong, f"the gateway logged errors: {wrong}")
        asked = [e.fields for e in entries if e.event == "http_request" and e.request == request]
        wanted = {
            "method": "POST",
            "endpoint": "/v1/chat/completions",
            "status": 200,
            "reason": "ok",
            "key": "anna",
            "model": "bundled",
            "new_tokens": _TOKENS,
        }
        found = [{name: line.get(name) for name in wanted} for line in asked]
        check(found == [wanted], f"journald has of the request {request}: {asked}")
        check(asked[0]["pipeline"] and asked[0]["seconds"] > 0, f"the request's line: {asked[0]}")

    def _property(self, name: str) -> str:
        return self._host.run(["systemctl", "show", "--value", f"--property={name}", UNIT]).stdout.strip()

    def _status(self, path: str, question: str = "") -> int:
        """Return the status of the answer to a request without a key, 0 if there is none."""
        return int(self._fetch(path, question, more=("-o", "/dev/null", "-w", "%{http_code}")).stdout)

    def _fetch(
        self, path: str, question: str = "", key: str = "", request: str = "", more: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        command = ["curl", "-s", "--max-time", "120", *more, f"{self._url}{path}"]
        if question:
            command += ["--json", question]
        if key:
            command += ["-H", f"Authorization: Bearer {key}", "-H", f"x-request-id: {request}"]
        return self._asking.run(command, check=False)

    def _question(self) -> str:
        asked: dict[str, Any] = {
            "model": "bundled",
            "messages": [{"role": "user", "content": "Count to a hundred."}],
            "max_tokens": _TOKENS,
            "ignore_eos": True,
        }
        return json.dumps(asked)
