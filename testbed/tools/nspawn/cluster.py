"""The cluster of the boards: made on the first board, which is the draft node, and joined by all."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from typing import Any

from testbed.tools.nspawn.boards import Boards
from testbed.tools.nspawn.guide.document import Document
from testbed.tools.nspawn.guide.person import REAL_MODEL, Person
from testbed.tools.nspawn.host import Host
from testbed.tools.nspawn.waiting import check, together, until

AGENT = "flowedge-agent.service"
DRAFT_NODE = "flowedge-draft-node.service"
SETTINGS = "/etc/flowedge/agent.toml"
DRAFT_SETTINGS = "/etc/flowedge/draft-node.toml"
PORT = 7070  # of agents, as install.sh sets it
_WARNINGS = 4  # of flowedge doctor


class Cluster:
    """The commands of the document, given by the owner of the boards and by those who ask them."""

    def __init__(self, boards: Boards, document: Document) -> None:
        self._boards = boards
        self._document = document
        self.model = ""  # what the pipeline was told to run, if it is not the bundled model
        self._real_commands: list[str] = []

    @property
    def draft_node(self) -> Host:
        """The first board."""
        return self._boards.hosts[0]

    @property
    def owner(self) -> Person:
        """The person at the first board."""
        return Person(self.draft_node)

    @property
    def asking(self) -> Person:
        """The person who asks: at the laptop."""
        return Person(self._boards.every[-1])

    def address(self, host: Host) -> str:
        """Return a board's address."""
        return self._boards.address(host)

    def make(self) -> None:
        """Make the cluster, and have every board and both people join it at the same time."""
        for command in self._document.commands("Make the cluster, on board1"):
            self.owner.does(command)
        boards = (partial(self._join, host) for host in self._boards.hosts)
        people = (partial(self._join_person, person) for person in (self.owner, self.asking))
        together(*boards, *people)

    def _join(self, host: Host) -> None:
        for_leader, for_stage = self._document.commands("Join the boards")
        join, *then = self._document.commands("Join the boards", 1)
        token = self.owner.does(for_leader if host is self.draft_node else for_stage).stdout
        Person(host).does(join, token)
        for command in then:
            Person(host).does(command)

    def _join_person(self, person: Person) -> None:
        (token,) = self._document.commands("Join yourself")
        (join,) = self._document.commands("Join yourself", 1)
        person.does(join, self.owner.does(token).stdout)

    def look(self) -> None:
        """Give the commands that look at the boards; the doctor's warnings are about this machine.

        Raises:
            FlowEdgeError: when the doctor finds an error.
        """
        devices, doctor = self._document.commands("Look")
        listed = self.asking.does(devices).stdout
        check(all(host.name in listed for host in self._boards.hosts), f"flowedge devices: {listed}")
        done = self.asking.does(f"{doctor} --no-libraries --no-rate", check=False)
        check(done.returncode in (0, _WARNINGS), f"flowedge doctor: {done.stdout}{done.stderr}")

    def start_draft_node(self) -> None:
        """Have the first board keep a pipeline over all other boards."""
        settings = self._document.settings("The pipeline, on board1")
        settings["pipeline"]["count"] = str(len(self._boards.hosts) - 1)
        self.owner.edits(DRAFT_SETTINGS, settings)
        for command in self._document.commands("The pipeline, on board1"):
            self.owner.does(command)

    def ask(self) -> None:
        """Give the commands of the first token. The last of them checks against the plain model."""
        for command in self._document.commands("The first token"):
            self.asking.does(f"{command} --max-new-tokens 32")

    def check_answer(self) -> None:
        """Give the last of these commands, at the first board."""
        self.owner.does(f"{self._document.commands('The first token')[-1]} --max-new-tokens 32")

    def take_real_model(self) -> None:
        """Have the pipeline run another model, which the first board alone has (see write_real_model)."""
        settings = self._document.settings("A real model")
        self.model, named = REAL_MODEL, settings["pipeline"]["model"].strip('"')
        settings["pipeline"]["model"] = f'"{REAL_MODEL}"'
        self.owner.edits(DRAFT_SETTINGS, settings)
        for command in self._document.commands("A real model"):
            self.owner.does(command)
        self._real_commands = [
            command.replace(named, REAL_MODEL) for command in self._document.commands("A real model", 1)
        ]

    def ask_real_model(self) -> str:
        """Ask the real model, and return the list of which board has which weights."""
        generate, models = self._real_commands
        self.asking.does(f"{generate} --max-new-tokens 16")
        return self.asking.does(models).stdout

    def metrics(self, host: Host) -> str:
        """Give a board's metrics a fixed port, and return what is served there."""
        person = Person(host)
        person.edits(SETTINGS, self._document.settings("What is going on"))
        restart, fetch = self._document.commands("What is going on", 1)
        person.does(restart)
        return person.does(fetch).stdout

    def status(self, host: Host) -> str:
        """Return what the first command about the state of a board shows."""
        return Person(host).does(f"sudo {self._document.commands('What is going on')[0]}").stdout

    def revoke(self, host: Host) -> None:
        """Revoke a board as the document revokes board3."""
        listing, revoke = self._document.commands("Leave")
        listed = self.owner.does(listing).stdout
        check(host.name in listed, f"flowedge cluster list: {listed}")
        self.owner.does(revoke.replace("board3", host.name))

    def admit_again(self, host: Host) -> None:
        """Let a revoked board join again."""
        token = self.owner.does(f"sudo flowedge cluster token --name {host.name}").stdout
        Person(host).does("sudo flowedge join --replace", token)
        Person(host).does("sudo systemctl restart flowedge-agent")

    def findings(self, host: Host) -> set[str]:
        """Return the codes of what the doctor finds on a board, as the board sees it."""
        asked = "sudo flowedge doctor --json --no-libraries --no-rate"
        return {
            found["code"] for found in json.loads(Person(host).does(asked, check=False).stdout)["findings"]
        }

    def devices(self, *, search: bool = False) -> list[dict[str, Any]]:
        """Return what `flowedge devices` lists of the boards.

        search: whether the boards are found by multicast, and not named.
        """
        known = ",".join(f"{self.address(host)}:{PORT}" for host in self._boards.hosts)
        where = "--timeout 3" if search else f"--peers {known}"
        listed = self.asking.does(f"flowedge devices --json {where}").stdout
        devices: list[dict[str, Any]] = json.loads(listed)
        return devices

    def pipeline(self) -> str:
        """Return the label of the ready pipeline over all boards, or an empty string."""
        by_name = {device["name"]: device for device in self.devices() if not device["problem"]}
        leader = by_name.get(self.draft_node.name)
        ready = leader is not None and len(leader["stage_addresses"]) == len(self._boards.hosts) - 1
        return str(leader["pipeline"]) if leader is not None and ready else ""

    def wait_ready(self, seconds: float) -> list[tuple[str, tuple[int, int]]]:
        """Wait until the pipeline is ready, and all boards are found by multicast.

        Returns the board and its layers [start, stop) for each block, in the order of the layers.
        """
        until(lambda: bool(self.pipeline()), seconds, "a pipeline over all boards is ready")
        devices: dict[str, dict[str, Any]] = {}

        def found() -> bool:
            answered = (device for device in self.devices(search=True) if not device["problem"])
            devices.update({device["name"]: device for device in answered})
            return all(host.name in devices for host in self._boards.hosts)

        until(found, seconds, "all boards are found by multicast")
        stages = [host.name for host in self._boards.hosts[1:]]
        held = sorted((tuple(devices[name]["layers"]), name) for name in stages)
        ends = [0] + [layers[1] for layers, _ in held]
        check(
            all(start == end < stop for ((start, stop), _), end in zip(held, ends, strict=False)),
            f"the blocks do not follow each other: {held}",
        )
        return [(name, (layers[0], layers[1])) for layers, name in held]

    def start_generate(self, prompt: str, tokens: int) -> subprocess.Popen[str]:
        """Start asking the pipeline for an answer, and return the process."""
        named = f" --model {self.model} --drafter ngram" if self.model else ""
        return self.asking.starts(f"flowedge generate --prompt '{prompt}' --max-new-tokens {tokens}{named}")
