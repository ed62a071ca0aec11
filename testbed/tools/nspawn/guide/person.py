"""A person at a host, who gives commands as a document writes them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from testbed.tools.nspawn.boards import CHECKOUT
from testbed.tools.nspawn.guide.document import Settings, with_settings
from testbed.tools.nspawn.host import Host

USER = "pi"  # without any right that other users do not have
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
        return ["runuser", "-u", USER, "--", "env", f"HOME=/home/{USER}", *shell]
