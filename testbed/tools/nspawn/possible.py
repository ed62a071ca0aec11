"""Whether this machine can boot hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil

from testbed.tools.nspawn.cgroups import hierarchies

TOOLS = {
    "systemd-nspawn": "systemd-container",
    "systemctl": "systemd",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
}
NEEDED_BYTES = 4 << 30  # what hosts write lies in memory, and three agents run
_PROBE = """
mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work" "$1/root" &&
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
"""
_PROBE_S = 20.0


def why_not() -> str | None:
    """Return why hosts cannot be booted here; None if they can."""
    if os.geteuid() != 0:
        return "booting hosts takes root"
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if missing:
        return f"the packages {', '.join(missing)} are missing"
    init = Path("/sbin/init")
    if not init.exists() or "systemd" not in str(init.resolve()):
        return "/sbin/init is not systemd, so that a host made of this root cannot boot it"
    if not hierarchies():
        return "no cgroup hierarchy that systemd can use is mounted and writable"
    free = psutil.virtual_memory().available
    if free < NEEDED_BYTES:
        return f"{NEEDED_BYTES >> 30} GiB of memory are needed, {free / 2**30:.1f} GiB are free"
    return _no_overlay()


def _no_overlay() -> str | None:
    with tempfile.TemporaryDirectory(prefix="flowedge-nspawn-probe-") as directory:
        probe = ["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c", _PROBE, "sh", directory]
        done = subprocess.run(probe, capture_output=True, text=True, timeout=_PROBE_S, check=False)
    if done.returncode == 0:
        return None
    return f"no overlay of this root can be mounted: {done.stderr.strip() or done.returncode}"
