"""Hosts on one bridge: an image in which install.sh was run, and the boards that are copies of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from testbed.tools.nspawn.host import BRIDGE, Host
from testbed.tools.nspawn.layers import Layers, clear, name_host, run

CHECKOUT = "/srv/flowedge"  # where hosts see the checkout, which they cannot write to
WHEELS = "/srv/wheels"
_IMAGE = "image"
_NETWORK = "10.31.0"  # in a network namespace of its own, so that it is in nobody's way


@dataclass
class Boards:
    """Hosts below `directory`, whose control groups are below `group`.

    Attributes:
        checkout, wheels: directories that the hosts install from.
        more: other directories of this machine that the hosts can read, by their place there.
        every: the hosts that were booted: the boards, and at last the laptop, which is none.
    """

    directory: Path
    group: str
    checkout: Path
    wheels: Path
    more: dict[str, Path] = field(default_factory=dict)
    every: list[Host] = field(default_factory=list)
    _layers: Layers = field(init=False)

    def __post_init__(self) -> None:
        self._layers = Layers(self.directory)

    def prepare(self) -> None:
        """Make the bridge, and room for the files that hosts write."""
        self._layers.start()
        run(["ip", "link", "set", "lo", "up"])
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        run(["ip", "link", "set", BRIDGE, "up"])
        Path("/run/systemd").mkdir(exist_ok=True)
        # systemd-nspawn keeps its notes here; with this they are ours, and end with us.
        run(["mount", "-t", "tmpfs", "tmpfs", "/run/systemd"])

    def make_image(self, install: Callable[[Host], None]) -> None:
        """Boot a host without FlowEdge, have `install` change it, and keep the files that it wrote."""
        host = self._host(_IMAGE, 0, [])
        clear(host.root)
        host.boot()
        host.wait_booted()
        install(host)
        host.power_off()
        self._layers.unmount(_IMAGE)

    @property
    def hosts(self) -> list[Host]:
        """The boards."""
        return self.every[:-1]

    def boot(self, count: int) -> None:
        """Boot `count` copies of the image, named board1, board2, ..., and one more named laptop."""
        below = [self._layers.upper(_IMAGE)]
        names = [*(f"board{number}" for number in range(1, count + 1)), "laptop"]
        self.every = [self._host(name, number, below) for number, name in enumerate(names, 1)]
        for host in self.every:
            host.boot()
        for host in self.every:
            host.wait_booted()

    def address(self, host: Host) -> str:
        """Return the host's address on the bridge."""
        return f"{_NETWORK}.{self.hosts.index(host) + 2}"

    def _host(self, name: str, number: int, below: list[Path]) -> Host:
        root = self._layers.mount(name, below)
        name_host(root, name, f"{_NETWORK}.{number + 1}/24")
        return Host(
            name=name,
            root=root,
            group=f"{self.group}/{name}",
            log=self.directory / f"{name}.log",
            shared={CHECKOUT: self.checkout, WHEELS: self.wheels, **self.more},
        )
