"""A process that announces agents that are none, until its input closes.

Arguments: its IP address, the cluster's id, and how many agents it announces. Their ports are silent, closed,
or served by TLS with a certificate of another cluster. Malformed announcements go out beside them.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import tempfile
import threading
import time
from pathlib import Path

from flowedge.cluster.authority import Authority
from flowedge.version import PROTOCOL_VERSION
from tests.cluster.clusters import now
from tests.discovery.packets import MALFORMED, announcement, sender


def fields(number: int, cluster: str) -> dict[str, str]:
    """Return the fields of a fake agent, which is sorted before agents of other names."""
    return {
        "cluster": cluster,
        "id": f"fake{number:04d}",
        "name": f"a{number:04d}",
        "kind": "fake",
        "memory": "1000000000",
        "protocol": str(PROTOCOL_VERSION),
        "version": "0.1.0",
    }


def silent(ip: str) -> int:
    """Accept connections and say nothing; return the port."""
    server = socket.create_server((ip, 0), backlog=4096)
    kept = []
    threading.Thread(target=lambda: [kept.append(server.accept()) for _ in iter(int, 1)], daemon=True).start()
    return int(server.getsockname()[1])


def closed(ip: str) -> int:
    with socket.create_server((ip, 0)) as server:
        return int(server.getsockname()[1])


def foreign(ip: str) -> int:
    """Serve TLS with the certificate of another cluster's CA; return the port."""
    with tempfile.TemporaryDirectory() as directory:
        Authority.create(Path(directory), "away", now=now(), addresses=[f"{ip}:1"], port=1)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        (member,) = Path(directory).rglob("member.pem")
        context.load_cert_chain(member)
    server = socket.create_server((ip, 0), backlog=4096)

    def serve() -> None:
        while True:
            connection, _ = server.accept()
            with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as encrypted:
                encrypted.recv(1)

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def announce(ip: str, cluster: str, count: int) -> None:
    ports = (silent(ip), closed(ip), foreign(ip))
    with sender(ip) as sending:
        while True:
            for number in range(count):
                packet = announcement(f"fake{number:04d}", ip, ports[number % 3], fields(number, cluster))
                sending.send(packet)
                time.sleep(0.001)
            for packet in MALFORMED:
                sending.send(packet)
            print("announced", flush=True)
            time.sleep(0.5)


if __name__ == "__main__":
    arguments = (sys.argv[1], sys.argv[2], int(sys.argv[3]))
    threading.Thread(target=announce, args=arguments, daemon=True).start()
    sys.stdin.read()
