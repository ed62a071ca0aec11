"""The file systems of hosts: this machine's root, the changes of an image, and the changes of each host.

All changes lie in a tmpfs. The upper directory of an overlay must not lie on an overlay, and /tmp does in
many containers.
"""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from flowedge.core.errors import DeviceError

_MOUNT_S = 20.0
# What a board does not have before FlowEdge is installed, whatever this machine has.
_FOREIGN = (
    "opt/flowedge",
    "etc/flowedge",
    "var/lib/flowedge",
    "var/cache/flowedge",
    "usr/local/bin/flowedge",
    "etc/sysusers.d/flowedge.conf",
    "var/log/journal",
)
_UNITS = "etc/systemd/system"


class Layers:
    """The layers below `directory`, which is empty. Their mounts end with the namespace."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def start(self) -> None:
        """Mount the tmpfs for the files that hosts write."""
        run(["mount", "-t", "tmpfs", "-o", "mode=755,size=80%", "tmpfs", str(self._directory)])

    def upper(self, name: str) -> Path:
        """Return the directory of the files that the host `name` writes."""
        return self._directory / name / "upper"

    def mount(self, name: str, below: Sequence[Path]) -> Path:
        """Mount and return a host's root: this machine's root under the layers `below`, the topmost first."""
        base = self._directory / name
        root = base / "root"
        for directory in (self.upper(name), base / "work", root):
            directory.mkdir(parents=True)
        self.upper(name).chmod(0o755)
        lower = ":".join(map(str, [*below, Path("/")]))
        options = f"lowerdir={lower},upperdir={self.upper(name)},workdir={base / 'work'}"
        run(["mount", "-t", "overlay", "-o", options, "overlay", str(root)])
        return root

    def unmount(self, name: str) -> None:
        """Unmount a host's root. The files that the host wrote stay, as a layer for other hosts."""
        run(["umount", str(self._directory / name / "root")])


def clear(root: Path) -> None:
    """Make a host's root that of a fresh system, with systemd's own services and nothing of FlowEdge."""
    for foreign in _FOREIGN:
        path = root / foreign
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for wanted in (root / _UNITS).glob("*.wants/*"):
        wanted.unlink()
    for unit in (root / _UNITS).glob("flowedge-*"):
        shutil.rmtree(unit) if unit.is_dir() else unit.unlink()


def name_host(root: Path, name: str, address: str) -> None:
    """Give a host its own name, its own identity and its address on the bridge, such as "10.0.0.2/24"."""
    (root / "etc/hostname").write_text(f"{name}\n")
    machine = root / "etc/machine-id"
    machine.unlink(missing_ok=True)
    machine.write_text(f"{uuid.uuid4().hex}\n")
    network = root / "etc/systemd/network"
    network.mkdir(parents=True, exist_ok=True)
    (network / "10-bridge.network").write_text(
        f"[Match]\nName=host0\n[Network]\nAddress={address}\nIPv6AcceptRA=no\n"
    )
    (root / "var/log/journal").mkdir(parents=True, exist_ok=True)
    run(["systemctl", f"--root={root}", "--quiet", "enable", "systemd-networkd.service"])


def run(command: Sequence[str]) -> None:
    """Run a command that prepares a host.

    Raises:
        DeviceError: when the command fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=_MOUNT_S, check=False)
    if done.returncode:
        raise DeviceError("this one", f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
