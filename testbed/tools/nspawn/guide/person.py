"""A person at a host, who gives commands as a document writes them, with a model in place of the hub's."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from testbed.tools.nspawn.boards import CHECKOUT
from testbed.tools.nspawn.guide.document import Settings, with_settings
from testbed.tools.nspawn.host import Host

USER = "pi"  # without any right that other users do not have
HOME = f"/home/{USER}"
_SUDO = "sudo "


def add_user(host: Host) -> None:
    """Make the user on a host, or on the image of hosts."""
    host.run(["useradd", "--create-home", USER])


@dataclass(frozen=True)
class Person:
    """A user of a host. What begins with sudo runs as root, since hosts need no sudo of their own."""

    host: Host

    def does(self, command: str, given: str = "", *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Give a command in the checkout's directory and wait for its end. Errors as Host.run.

        given: what the command reads from standard input.
        """
        return self.host.run(self._words(command), text=given, check=check)

    def starts(self, command: str) -> subprocess.Popen[str]:
        return self.host.start(self._words(command))

    def edits(self, file: str, settings: Settings) -> None:
        """Set settings in a configuration file of the host."""
        before = self.host.run(["cat", file]).stdout
        self.host.run(["tee", file], text=with_settings(before, settings))

    def _words(self, command: str) -> list[str]:
        # One thread a process, since the hosts share few cores.
        shell = ["env", "OMP_NUM_THREADS=1", "sh", "-c", f"cd {CHECKOUT} && {command.removeprefix(_SUDO)}"]
        if command.startswith(_SUDO):
            return shell
        return ["runuser", "-u", USER, "--", "env", f"HOME={HOME}", *shell]


REAL_MODEL = "/srv/model"  # on the first board only
# The heads of SmolLM2 135M and its width, with fewer layers.
_SHAPE = ("--hidden", "576", "--intermediate", "1536", "--heads", "9", "--kv-heads", "3", "--layers", "6")


def write_real_model(root: Path) -> None:
    """Write the model to a host, whose files lie below `root`."""
    directory = root / REAL_MODEL.removeprefix("/")
    command = [sys.executable, "-m", "testbed.tools.random_model", str(directory), *_SHAPE]
    subprocess.run(command, check=True)
    directory.chmod(0o755)
    for file in directory.iterdir():
        file.chmod(0o644)  # the services' user reads them
