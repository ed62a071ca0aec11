"""A stand-in for Python: it runs `flowedge` in a process that is forked from one with the imports.

`processes.py` makes a program of this file, beside the sockets of fork_server.py; it is called as Python is.
The forked process has the streams, directory, environment and network of the program. Signals go on to it,
the program ends as it does, and it is killed if the program is. Paced agents of the testbed are forked, too;
Python itself runs what is neither.
The imports are few because each command pays for them.
"""

from __future__ import annotations

import _signal
import _socket
import marshal
import os
import sys

LIGHT = "TEST_NO_TORCH"  # a variable: torch is in no process before it is imported
FLOWEDGE, PACED_AGENT = "flowedge.cli.main", "flowedge_testbed.paced.agent"
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH")


def session_jobs(command: list[str]) -> tuple[str, list[str]] | None:
    """Return the module and the arguments of a command that is forked; None for another command of Python."""
    if command[1:3] == ["-m", FLOWEDGE]:
        return FLOWEDGE, command[3:]
    if command[1:2] == ["-c"] and "".join(command[3:4]) in (FLOWEDGE, PACED_AGENT):  # system.python_command
        return command[3], command[4:]
    return None


def server_for(module: str, arguments: list[str], environment: dict[str, str]) -> str:
    """Return the server whose imports the command needs."""
    computes = arguments[:1] in (["agent"], ["bench"], ["train-drafter"]) or "--check" in arguments
    computes = computes or module == PACED_AGENT
    return "torch" if computes and LIGHT not in environment else "light"


def ask(
    directory: str, command: list[str], environment: dict[str, str], streams: list[int]
) -> tuple[_socket.socket, int]:
    """Have a server fork a `flowedge` command.

    Args:
        streams: file descriptors that become 0, 1 and 2; -1 for a closed one.

    Returns:
        The connection, on which the wait status comes, and the process id.
    """
    parts = session_jobs(command)
    assert parts is not None, command
    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    link.connect(f"{directory}/{server_for(*parts, environment)}")
    closed = [stream < 0 for stream in streams]
    request = marshal.dumps((command, *parts, environment, os.getcwd(), closed))  # noqa: PTH109
    passed = [network, *(stream for stream in streams if stream >= 0)]
    descriptors = b"".join(number.to_bytes(4, sys.byteorder) for number in passed)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)]
    link.sendmsg([len(request).to_bytes(8, "big")], rights)
    link.sendall(request)
    os.close(network)
    return link, int.from_bytes(link.recv(4), "big")


def main() -> None:
    command = [sys.argv[0], *sys.argv[1:]]
    environment = dict(os.environ)
    if session_jobs(command) is None:
        os.execv(sys.executable, [sys.executable, *command[1:]])
    streams = [number if _is_open(number) else -1 for number in range(3)]
    link, pid = ask(command[0].rpartition("/")[0], command, environment, streams)
    if not pid:
        sys.exit("the server of forked processes has ended")
    for number in streams:
        if number >= 0:
            os.close(number)  # the last process that has a pipe open is the forked one
    for name in SIGNALS:
        _signal.signal(getattr(_signal, name), lambda number, _: _pass_on(pid, number))
    status = int.from_bytes(link.recv(4) or b"\x7f\0", "big")
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != _signal.SIGKILL:
            _signal.signal(os.WTERMSIG(status), _signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _pass_on(pid: int, number: int) -> None:
    try:  # noqa: SIM105 (the import takes time)
        os.kill(pid, number)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    main()
