"""The cluster of the boards: made on the first board, which is the draft node, and joined by all."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from testbed.tools.nspawn.boards import Boards
from testbed.tools.nspawn.host import Host
from testbed.tools.nspawn.waiting import check, until

AGENT = "flowedge-agent.service"
DRAFT_NODE = "flowedge-draft-node.service"
ENROL = "flowedge-enrol.service"
_WARNINGS = 4  # of flowedge doctor
_AUTHORITY = "/var/lib/flowedge-enrol"
_IDENTITY = "/var/lib/flowedge"
# What the person who made the cluster acts under; one thread a process, since boards share few cores here.
# The cluster's key belongs to a user of its own.
_AS_AUTHORITY = ("runuser", "--user", "flowedge-enrol", "--", "flowedge", "cluster")
_ADMIN = ("env", f"FLOWEDGE_STATE_DIR={_AUTHORITY}", "OMP_NUM_THREADS=1")


class Cluster:
    """The commands that a person gives on the first board."""

    def __init__(self, boards: Boards) -> None:
        self._boards = boards

    @property
    def draft_node(self) -> Host:
        """The first board."""
        return self._boards.hosts[0]

    def make(self) -> None:
        """Make the cluster and have every board join it."""
        first = self.draft_node
        first.run([*_AS_AUTHORITY, "init", "proof", "--dir", _AUTHORITY])
        first.run(["systemctl", "enable", "--quiet", "--now", ENROL])
        for host in self._boards.hosts:
            role = "draft-node" if host is first else "agent"
            token = [*_AS_AUTHORITY, "token", "--dir", _AUTHORITY, "--role", role]
            made = first.run(token).stdout.strip()
            host.run(["flowedge", "join", "-", "--dir", _IDENTITY], text=made)
            if host is not first:
                host.run(["systemctl", "restart", AGENT])

    def start_draft_node(self) -> None:
        """Have the first board keep a pipeline over all other boards."""
        first, others = self.draft_node, len(self._boards.hosts) - 1
        first.run(["sed", "-i", f"s/^#count = .*/count = {others}/", "/etc/flowedge/draft-node.toml"])
        first.run(["systemctl", "disable", "--quiet", "--now", AGENT])
        first.run(["systemctl", "enable", "--quiet", "--now", DRAFT_NODE])

    def devices(self) -> list[dict[str, Any]]:
        """Return the devices that `flowedge devices` finds by multicast."""
        listed = self.draft_node.run([*_ADMIN, "flowedge", "devices", "--timeout", "3", "--json"]).stdout
        devices: list[dict[str, Any]] = json.loads(listed)
        return devices

    def diagnose(self) -> None:
        """Run `flowedge doctor` and accept warnings, which are about this machine.

        Raises:
            FlowEdgeError: when the doctor finds an error.
        """
        asked = [*_ADMIN, "flowedge", "doctor", "--no-libraries", "--no-rate"]
        done = self.draft_node.run(asked, check=False)
        check(done.returncode in (0, _WARNINGS), f"flowedge doctor: {done.stdout}{done.stderr}")

    def pipeline(self) -> str:
        """Return the label of the ready pipeline over all boards, or an empty string."""
        by_name = {device["name"]: device for device in self.devices() if not device["problem"]}
        leader = by_name.get(self.draft_node.name)
        ready = leader is not None and len(leader["stage_addresses"]) == len(self._boards.hosts) - 1
        return str(leader["pipeline"]) if leader is not None and ready else ""

    def wait_ready(self, seconds: float) -> list[tuple[str, tuple[int, int]]]:
        """Wait until the pipeline is ready.

        Returns the board and its layers [start, stop) for each block, in the order of the layers.
        """
        until(lambda: bool(self.pipeline()), seconds, "a pipeline over all boards is ready")
        devices = {device["name"]: device for device in self.devices()}
        stages = [host.name for host in self._boards.hosts[1:]]
        held = sorted((tuple(devices[name]["layers"]), name) for name in stages)
        ends = [0] + [layers[1] for layers, _ in held]
        check(
            all(start == end < stop for ((start, stop), _), end in zip(held, ends, strict=False)),
            f"the blocks do not follow each other: {held}",
        )
        return [(name, (layers[0], layers[1])) for layers, name in held]

    def generate(self, prompt: str, tokens: int, *options: str) -> None:
        """Ask the pipeline for an answer.

        Raises:
            DeviceError: when the command fails; it holds the output.
        """
        self.draft_node.run(self._generate(prompt, tokens, options))

    def start_generate(self, prompt: str, tokens: int) -> subprocess.Popen[str]:
        """Start asking the pipeline for an answer, and return the process."""
        return self.draft_node.start(self._generate(prompt, tokens, ()))

    def _generate(self, prompt: str, tokens: int, options: Sequence[str]) -> list[str]:
        asked = ["--prompt", prompt, "--max-new-tokens", str(tokens), *options]
        return [*_ADMIN, "flowedge", "generate", *asked]
