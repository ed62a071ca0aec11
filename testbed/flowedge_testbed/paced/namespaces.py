"""Network namespaces on a bridge, one for each agent, whose outgoing links are held to a rate.

A namespace lives as long as a process in it: here a `cat`, which ends when its standard input closes. So
nothing is left when the process that made the network ends, for whatever reason.
"""

from __future__ import annotations

import ipaddress
import json
import os
import random
import secrets
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowedge.core.errors import BadRequestError, DeadlineError, DeviceError

TOOLS = ("ip", "tc", "unshare", "nsenter")
MAX_AGENTS = 200
# Of a full Ethernet frame, what tbf counts and what the stream carries (IP and TCP headers, with timestamps).
FRAME_BYTES, FRAME_PAYLOAD = 1514, 1448
BURST_S = 500e-6  # what tbf may let through at once: the most by which a message can be early
QUEUE_BYTES = 64 << 20  # more than an agent ever has in flight, so that nothing is dropped
_DEADLINE_S = 10.0
_POLL_S = 0.005
_ROOT = "the network of this machine"


def why_not() -> str | None:
    """Return why namespaces cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"{', '.join(missing)} not found (packages iproute2, util-linux)" if missing else None


@dataclass
class _Holder:
    """A process that keeps a namespace alive."""

    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls) -> _Holder:
        return cls(
            subprocess.Popen(
                ["unshare", "--net", "cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the command, which ends it
            )
        )

    @property
    def path(self) -> str:
        return f"/proc/{self.process.pid}/ns/net"

    def wait(self, deadline: float) -> None:
        """Wait until the process is in a namespace of its own."""
        own = Path("/proc/self/ns/net").readlink()
        while self.process.poll() is None:
            if Path(self.path).readlink() != own:
                return
            if time.monotonic() > deadline:
                raise DeadlineError("a network namespace was not made in time")
            time.sleep(_POLL_S)
        raise DeviceError(_ROOT, "unshare --net was refused")

    def enter(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs `command` in the namespace."""
        return ["nsenter", f"--net={self.path}", "--", *command]

    def stop(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(_DEADLINE_S)


class Namespaces:
    """One namespace for each of `count` agents, and one with the bridge between them.

    A pair of interfaces connects this process's own network with the bridge. Their addresses are of a network
    that this machine has no route to otherwise.

    Attributes:
        hosts: the addresses of the agents.
        interface: this process's end of the pair.
    """

    def __init__(self, count: int) -> None:
        if not 1 <= count <= MAX_AGENTS:
            raise BadRequestError(f"{count} namespaces were asked for; 1 to {MAX_AGENTS} are possible")
        self.hosts: list[str] = []
        self._count = count
        self.interface = f"fe{secrets.token_hex(5)}"
        self._bridge: _Holder | None = None
        self._agents: list[_Holder] = []

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that keep the namespaces alive."""
        holders = [*self._agents, *([self._bridge] if self._bridge is not None else [])]
        return [holder.process.pid for holder in holders]

    def start(self) -> None:
        """Make the namespaces. If that fails, nothing is left.

        Raises:
            DeviceError: when the system refuses.
            DeadlineError: when it takes too long.
        """
        try:
            self._make()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Take the namespaces down. A process that still runs in one loses its links."""
        if self._bridge is None:
            return
        # Gone already with the bridge's namespace, when that has ended before.
        subprocess.run(["ip", "link", "delete", self.interface], capture_output=True, check=False)
        for holder in [*self._agents, self._bridge]:
            holder.stop()
        self._agents, self._bridge, self.hosts = [], None, []

    def enter(self, agent: int, command: Sequence[str]) -> list[str]:
        """Return the command line that runs `command` in an agent's namespace."""
        return self._agents[agent].enter(command)

    def enter_bridge(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs `command` in the bridge's namespace."""
        if self._bridge is None:
            raise BadRequestError("the network has not been started")
        return self._bridge.enter(command)

    def limit(self, agent: int, mbps: float) -> None:
        """Limit the payload that an agent sends to `mbps` 1e6 bits a second."""
        bits = mbps * 1e6 * FRAME_BYTES / FRAME_PAYLOAD
        burst = max(2 * FRAME_BYTES, int(bits / 8 * BURST_S))
        shape = ["tbf", "rate", f"{bits:.0f}bit", "burst", f"{burst}b", "limit", f"{QUEUE_BYTES}b"]
        _run(self._agents[agent].enter(["tc", "qdisc", "replace", "dev", "eth0", "root", *shape]))

    def __enter__(self) -> Namespaces:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make(self) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        self._bridge = bridge = _Holder.start()
        self._agents = [_Holder.start() for _ in range(self._count)]
        for holder in [bridge, *self._agents]:
            holder.wait(deadline)
        network = free_network(used_networks())
        own, *addresses = (str(host) for host in list(network.hosts())[: self._count + 1])
        uplink = ["peer", "name", "uplink", "netns", _pid(bridge)]
        _run(["ip", "link", "add", self.interface, "type", "veth", *uplink])
        _run(["ip", "address", "add", f"{own}/{network.prefixlen}", "dev", self.interface])
        _run(["ip", "link", "set", self.interface, "up"])
        _run(bridge.enter(["ip", "link", "add", "name", "bridge", "type", "bridge"]))
        _run(bridge.enter(["ip", "link", "set", "bridge", "up"]))
        _run(bridge.enter(["ip", "link", "set", "uplink", "master", "bridge", "up"]))
        for index, (agent, address) in enumerate(zip(self._agents, addresses, strict=True)):
            port = f"port{index}"
            peer = ["peer", "name", "eth0", "netns", _pid(agent)]
            _run(bridge.enter(["ip", "link", "add", port, "type", "veth", *peer]))
            _run(bridge.enter(["ip", "link", "set", port, "master", "bridge", "up"]))
            _run(agent.enter(["ip", "address", "add", f"{address}/{network.prefixlen}", "dev", "eth0"]))
            _run(agent.enter(["ip", "link", "set", "eth0", "up"]))
            _run(agent.enter(["ip", "link", "set", "lo", "up"]))
        self.hosts = addresses


def used_networks() -> list[ipaddress.IPv4Network]:
    """Return every IPv4 network that this machine has a route to, without the default route."""
    routes = json.loads(_run(["ip", "-4", "-json", "route", "show", "table", "all"]) or "[]")
    destinations = [str(route["dst"]) for route in routes if route.get("dst", "default") != "default"]
    return [ipaddress.IPv4Network(destination, strict=False) for destination in destinations]


def free_network(used: Sequence[ipaddress.IPv4Network]) -> ipaddress.IPv4Network:
    """Return a private network of 256 addresses that overlaps none of `used`.

    Raises:
        DeviceError: when there is none.
    """
    for private in map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")):
        if any(private.subnet_of(other) for other in used):
            continue
        count = private.num_addresses // 256
        start = random.randrange(count)  # so that two processes that search at once find different networks
        for step in range(count):
            network = ipaddress.IPv4Network((int(private[0]) + (start + step) % count * 256, 24))
            if not any(network.overlaps(other) for other in used):
                return network
    raise DeviceError(_ROOT, "no private addresses are free: every such network has a route already")


def _pid(holder: _Holder) -> str:
    return str(holder.process.pid)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    if done.returncode:
        raise DeviceError(_ROOT, f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
