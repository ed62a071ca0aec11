"""Ports for programs that have to be told theirs before they listen."""

from __future__ import annotations

import random
import socket

# Below those that a system gives to sockets that ask for any (net.ipv4.ip_local_port_range), so that no
# connection takes one between its choice and the program's start.
_PORTS = range(20_000, 32_000)
_TRIES = 1000
_kept: list[socket.socket] = []


def free_port() -> int:
    """Return a port of loopback on which nothing listens."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive ports of loopback on which nothing listens.

    While this process lives, they are returned to no other test in its network namespace.
    """
    for _ in range(_TRIES):
        first = random.choice(_PORTS)
        locks: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                locks.append(_lock(port))
                with socket.socket() as listener:
                    listener.bind(("127.0.0.1", port))
        except OSError:
            for lock in locks:
                lock.close()
        else:
            _kept.extend(locks)
            return first
    raise RuntimeError(f"{_TRIES} times no {count} free ports between {_PORTS.start} and {_PORTS.stop}")


def _lock(port: int) -> socket.socket:
    """Return the holder of a name that one process of the network namespace can hold at a time."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0flowedge-test-port-{port}")
    except OSError:
        lock.close()
        raise
    return lock
