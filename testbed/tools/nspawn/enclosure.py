"""The namespaces that the whole proof runs in, and how they end.

When the first process of a process namespace ends, all others in it end. The mounts and the bridge end with
the last process. Control groups and a directory remain; whichever side is left removes them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from testbed.tools.nspawn import cgroups

_END_S = 60.0


def run_enclosed(module: str, arguments: Sequence[str]) -> int:
    """Run a module, such as testbed.tools.nspawn.inside, in namespaces of its own; return its exit status.

    The module's arguments are a directory, the name of a control group that does not exist yet, and
    `arguments`. When this process ends, the pipe to the module closes, and everything inside ends too.
    """
    directory = tempfile.mkdtemp(prefix="flowedge-nspawn-")
    group = f"flowedge-nspawn-{secrets.token_hex(5)}"
    namespaces = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    inside = [sys.executable, "-m", module, directory, group, *arguments]
    process = subprocess.Popen([*namespaces, *inside], stdin=subprocess.PIPE, start_new_session=True)
    try:
        return process.wait()
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()  # and with it, by --kill-child, everything inside
            process.wait(_END_S)
        cgroups.remove(group)
        with contextlib.suppress(FileNotFoundError):
            Path(directory).rmdir()


def end_with_parent(directory: Path, group: str) -> None:
    """Have everything inside end when the process that started it is gone."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        end_everything(directory, group)
        os._exit(1)

    threading.Thread(target=watch, name="nspawn-parent", daemon=True).start()


def end_everything(directory: Path, group: str) -> None:
    """Kill every other process inside, and remove the files that outlive the namespaces.

    Raises:
        RuntimeError: when this process is not the first of a namespace, and would kill other processes.
    """
    if os.getpid() != 1:
        raise RuntimeError("this is not the first process of a namespace of its own")
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    cgroups.remove(group)
    subprocess.run(["umount", "--recursive", str(directory)], capture_output=True, check=False)
    with contextlib.suppress(OSError):  # the other side removes it too
        directory.rmdir()
