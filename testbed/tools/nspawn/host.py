"""One host: systemd in a container of its own, on the bridge, with a root that only the host writes to."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flowedge.core.errors import DeadlineError, DeviceError
from testbed.tools.nspawn import cgroups

BRIDGE = "flowedge"
BOOT_S = 300.0
COMMAND_S = 600.0
_POLL_S = 0.05
_RESTART = 133  # what systemd-nspawn exits with when its host wants to be started again
_NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}


@dataclass
class Host:
    """A host that boots `root`.

    Attributes:
        group: the control group that it runs in (see cgroups.py).
        log: the file for the messages of systemd-nspawn.
        shared: directories of this machine that the host can read, by their place in the host.
    """

    name: str
    root: Path
    group: str
    log: Path
    shared: dict[str, Path]
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _leader: int = field(default=0, init=False)

    def boot(self) -> None:
        """Start the host; `wait_booted` waits for it. A host that was stopped can be started again."""
        into = " && ".join(f"echo $$ >{file}" for file in cgroups.make(self.group))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", f'{into} && exec "$@"', "sh", *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_booted(self) -> None:
        """Wait until systemd has started all units.

        Raises:
            DeviceError: when a unit failed.
            DeadlineError: when it takes too long.
        """
        deadline = time.monotonic() + BOOT_S
        self._leader = self._find_leader(deadline)
        state = ""
        while state not in {"running", "degraded"}:
            self._check_alive()
            if time.monotonic() > deadline:
                raise DeadlineError(f"host {self.name} is {state or 'silent'} after {BOOT_S:g} s")
            time.sleep(_POLL_S)
            state = self.run(["systemctl", "is-system-running"], check=False).stdout.strip()
        if state == "degraded":
            failed = self.run(["systemctl", "--failed", "--no-legend", "--plain"]).stdout.strip()
            raise DeviceError(self.name, f"units failed at boot: {failed}")

    def start(self, command: Sequence[str], text: str = "") -> subprocess.Popen[str]:
        """Start a command in the host as root; its output is text.

        text: what the command reads from standard input.
        """
        self._check_alive()
        with tempfile.TemporaryFile("w+") as given:
            given.write(text)
            given.seek(0)
            return subprocess.Popen(
                ["nsenter", f"--target={self._leader}", *_NAMESPACES, "--", *command],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=_ENVIRONMENT,
            )

    def run(
        self, command: Sequence[str], *, text: str = "", check: bool = True, timeout_s: float = COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the host as root; `text` is as in `start`.

        Raises:
            DeviceError: when the command fails and `check` is given.
            DeadlineError: when it takes too long.
        """
        return self.finish(self.start(command, text), check=check, timeout_s=timeout_s)

    def finish(
        self, process: subprocess.Popen[str], *, check: bool = True, timeout_s: float = COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        """Wait for a command that `start` started; see `run` for errors."""
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise DeadlineError(f"host {self.name}: {process.args!r} took over {timeout_s:g} s") from error
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        if check and done.returncode:
            words = " ".join(list(process.args)[3 + len(_NAMESPACES) :])  # type: ignore[arg-type]
            raise DeviceError(self.name, f"{words} ended with {done.returncode}:\n{out}{err}".rstrip())
        return done

    def restart(self) -> None:
        """Reboot the host with `systemctl reboot`, and wait until it has booted again."""
        self._end(["systemctl", "reboot"], _RESTART)
        self.boot()
        self.wait_booted()

    def power_off(self) -> None:
        """Shut the host down with `systemctl poweroff`."""
        self._end(["systemctl", "poweroff"], 0)

    def last_output_line(self) -> str:
        """Return the end of the journal and the messages of systemd-nspawn, for the report of a failure."""
        words = [f"--- {self.name}", self._words()]
        if self._process is not None and self._process.poll() is None:
            recent = ["journalctl", "--no-pager", "--lines=40", "--output=short-monotonic"]
            words.append(self.run(recent, check=False).stdout)
        return "\n".join(words)

    def _end(self, command: Sequence[str], status: int) -> None:
        process = self._check_alive()
        self.run(command, check=False)  # it may be killed by what it asks for
        try:
            ended = process.wait(BOOT_S)
        except subprocess.TimeoutExpired as error:
            raise DeadlineError(f"host {self.name} still runs {BOOT_S:g} s after {command[-1]}") from error
        if ended != status:
            raise DeviceError(self.name, f"{' '.join(command)} ended with {ended}: {self._words()}")
        self._process = None
        cgroups.remove(self.group)

    def _command(self) -> list[str]:
        return [
            "systemd-nspawn",
            f"--directory={self.root}",
            f"--machine={self.name}",
            "--boot",
            "--register=no",  # there may be no systemd around it to register with
            "--keep-unit",
            f"--network-bridge={BRIDGE}",
            "--console=pipe",
            "--link-journal=no",
            "--resolv-conf=off",
            "--timezone=off",
            *(f"--bind-ro={path}:{seen}" for seen, path in self.shared.items()),
        ]

    def _check_alive(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise DeviceError(self.name, "it is not running")
        status = self._process.poll()
        if status is not None:
            raise DeviceError(self.name, f"it ended with {status}: {self._words()}")
        return self._process

    def _find_leader(self, deadline: float) -> int:
        """Return the host's first process: the child that is process 1 of a namespace of its own."""
        process = self._check_alive()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while time.monotonic() < deadline:
            for child in children.read_text().split():
                if _is_first(Path(f"/proc/{child}/status")):
                    return int(child)
            self._check_alive()
            time.sleep(_POLL_S)
        raise DeadlineError(f"host {self.name} did not start within {BOOT_S:g} s: {self._words()}")

    def _words(self) -> str:
        return self.log.read_text(errors="replace").strip()


def _is_first(status: Path) -> bool:
    try:
        lines = status.read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    ids = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    own = len(Path("/proc/self/status").read_text().partition("NSpid:")[2].splitlines()[0].split())
    return len(ids) > own and ids[-1] == "1"
