"""Two processes from which `flowedge` commands are forked: with the imports of commands, and with torch, too.

It is run as a program with two listening sockets as its arguments, and ends when its standard input closes.
The first request to each socket starts the imports.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import marshal
import os
import pkgutil
import select
import signal
import socket
import sys
import termios
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TextIO

TORCH = [
    "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama",
    "flowedge.agent.roles.compute_side",
    "flowedge.models.check.reference",
]
COMMANDS = [
    "flowedge.cli",
    "flowedge.client",
    "flowedge.discovery",
    "flowedge.agent.main",
    "flowedge.gateway.process",
]
COMPUTES = {  # modules that import torch
    "flowedge.cli.check",
    "flowedge.cli.screens.model_screen",
    "flowedge.cli.screens.plan_screen",
    "flowedge.cli.screens.train_screen",
}
LIFE = 0  # its end is that of the tests


class Request(NamedTuple):
    """A command to run.

    Attributes:
        command: the whole command line; module: whose `main` it calls, with the arguments.
        closed: which of the three standard streams are closed.
        passed: file descriptors of the network namespace and of the streams that are open.
    """

    command: list[str]
    module: str
    arguments: list[str]
    environment: dict[str, str]
    directory: str
    closed: list[bool]
    passed: list[int]


class Forked(NamedTuple):
    """A forked process; `ended` can be read when it has ended."""

    pid: int
    ended: int
    link: socket.socket

    def close(self) -> None:
        os.close(self.ended)
        self.link.close()


class Server:
    """Forks a process for each request."""

    def __init__(self, light: socket.socket, torch: socket.socket) -> None:
        self._light, self._torch = light, torch
        self._listeners = [light, torch]
        self._forked: list[Forked] = []

    def serve(self) -> Request:
        """Return the request of a forked process in this process; the server itself never returns."""
        select.select([LIFE, *self._listeners], [], [])
        _import(COMMANDS)
        while True:
            waited = [(process.link, process.ended) for process in self._forked]
            ready = select.select(
                [LIFE, *self._listeners, *(each for pair in waited for each in pair)], [], []
            )[0]
            if LIFE in ready:
                self._end()
            for process in [*self._forked]:
                self._look_after(process, ready)
            listener = next((each for each in self._listeners if each in ready), None)
            if listener is not None and len(self._listeners) > 1 and listener is self._torch:
                self._divide()
            elif listener is not None and (request := self._fork(listener.accept()[0])):
                return request

    def _end(self) -> None:
        for process in self._forked:
            os.kill(process.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while True:
                os.wait()  # so that the processor time of all counts as this one's
        os._exit(0)

    def _look_after(self, process: Forked, ready: Sequence[object]) -> None:
        if process.ended in ready:
            status = os.waitpid(process.pid, 0)[1]
            with suppress(OSError):  # nobody asks
                process.link.sendall(status.to_bytes(4, "big"))
            process.close()
            self._forked.remove(process)
        elif process.link in ready:  # the process that asked for it has ended
            os.kill(process.pid, signal.SIGKILL)

    def _divide(self) -> None:
        """Make a server of its own for the commands that compute."""
        if os.fork():
            self._torch.close()
            self._listeners = [self._light]
            return
        for process in self._forked:
            process.close()
        self._light.close()
        self._listeners, self._forked = [self._torch], []
        _import(TORCH)

    def _fork(self, link: socket.socket) -> Request | None:
        try:
            request = _receive(link)
        except (EOFError, OSError):  # the process that asks has been killed
            return None
        pid = os.fork()
        if pid == 0:
            return request
        for descriptor in request.passed:
            os.close(descriptor)
        with suppress(OSError):
            link.sendall(pid.to_bytes(4, "big"))
        self._forked.append(Forked(pid, os.pidfd_open(pid), link))
        return None


def _import(names: list[str]) -> None:
    """Import modules, and all that packages hold."""
    gc.disable()  # it would take a third of the time
    for name in names:
        package = importlib.import_module(name)
        inside = pkgutil.walk_packages(getattr(package, "__path__", []), f"{name}.")
        for found in {found.name for found in inside} - COMPUTES:
            importlib.import_module(found)
    gc.collect()
    gc.enable()
    gc.freeze()  # or each forked process copies the memory of all objects when its own collector runs


def _receive(link: socket.socket) -> Request:
    size, passed, _, _ = socket.recv_fds(link, 8, 4)
    text = b""
    while len(text) < int.from_bytes(size, "big"):
        text += (part := link.recv(1 << 16))
        if not part:
            raise EOFError
    return Request(*marshal.loads(text), passed)


def become(request: Request) -> None:
    """Give this process what a new one of the command line would have."""
    os.setsid()
    network, *given = request.passed
    if os.fstat(network).st_ino != Path("/proc/self/ns/net").stat().st_ino:
        assert ctypes.CDLL(None, use_errno=True).setns(network, 0) == 0, os.strerror(ctypes.get_errno())
    for number, closed in enumerate(request.closed):
        os.close(number) if closed else os.dup2(given.pop(0), number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    with suppress(OSError):  # no terminal, or that of another session
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    if os.environ.get("FLOWEDGE_TEST_WITHOUT_GC"):
        gc.disable()
    for name, mode, number in (("stdin", "r", 0), ("stdout", "w", 1), ("stderr", "w", 2)):
        stream = None if request.closed[number] else _stream(number, mode, getattr(sys, f"__{name}__"))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.executable, sys.orig_argv = request.command[0], request.command
    sys.argv = ["flowedge", *request.arguments]
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.modules.pop("sitecustomize", None)
    with suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")


def _stream(number: int, mode: str, own: TextIO) -> TextIO:
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    stream = open(number, mode, encoding=own.encoding, errors=own.errors, closefd=False)  # noqa: SIM115
    by_line = not unbuffered and (number == 2 or os.isatty(number))
    stream.reconfigure(line_buffering=by_line, write_through=unbuffered and mode == "w")
    return stream


def run(module: str) -> None:
    """Run the command and end as Python does, but leave what was imported in memory."""
    try:
        importlib.import_module(module).main()
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        atexit._run_exitfuncs()  # noqa: SLF001
        with suppress(OSError, ValueError):  # Python itself complains about the stream, and ends otherwise
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(ended.code)
        raise


if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file, whose modules have names of other packages
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as `flowedge` sets it before it imports gRPC
    request = Server(*(socket.socket(fileno=int(number)) for number in sys.argv[1:])).serve()
    become(request)
    run(request.module)
