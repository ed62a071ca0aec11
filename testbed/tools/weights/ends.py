"""The two ends of a copy, each a process in its own network: `python -m testbed.tools.weights.ends ROLE ...`.

A sender prints its address. When a process ends it prints JSON with its seconds and its peak memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc.aio

from flowedge.cluster import process
from flowedge.cluster.process import Security
from flowedge.device.disk_cache.limits import CacheLimits
from flowedge.device.disk_cache.objects import ObjectStore
from flowedge.network.link_settings import LinkSettings
from flowedge.v1 import weights_pb2_grpc as rpc
from flowedge.weights.fetch.fetcher import Fetcher
from flowedge.weights.fetch.progress import FetchProgress
from flowedge.weights.fetch.source import SourceAddress
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.service import WeightsService
from flowedge.weights.settings import WeightsSettings

BUFFER_BYTES = 1 << 20


def sizes_of(root: Path) -> dict[str, int]:
    """Return the sizes of the objects in a cache."""
    store = ObjectStore(CacheLimits(root, 1 << 50))
    return {digest: store.size(digest) or 0 for digest in store}


def send_tcp(host: str, root: Path) -> None:
    """Send all objects one after the other over one connection."""
    store = ObjectStore(CacheLimits(root, 1 << 50))
    with socket.create_server((host, 0)) as listening:
        print(f"{host}:{listening.getsockname()[1]}", flush=True)
        connection, _ = listening.accept()
        with connection:
            for digest in sizes_of(root):
                with store.path(digest).open("rb") as file:
                    connection.sendfile(file)


def receive_tcp(address: str, target: Path, total: int) -> None:
    """Receive to a file, which is flushed to the disk at the end."""
    host, _, port = address.rpartition(":")
    buffer, received = memoryview(bytearray(BUFFER_BYTES)), 0
    started = time.perf_counter()
    with socket.create_connection((host, int(port))) as connection, target.open("wb") as file:
        while count := connection.recv_into(buffer):
            file.write(buffer[:count])
            received += count
        os.fsync(file.fileno())
    if received != total:
        raise SystemExit(f"{received} of {total} bytes came")
    _report(time.perf_counter() - started)


async def send_objects(host: str, root: Path) -> None:
    """Serve the objects as an agent does, until standard input closes."""
    local_weights = LocalWeights(ObjectStore(CacheLimits(root, 1 << 50)))
    server = grpc.aio.server(options=LinkSettings().channel_options)
    rpc.add_WeightsServicer_to_server(WeightsService("sender", local_weights, WeightsSettings()), server)
    port = server.add_insecure_port(f"{host}:0")
    await server.start()
    reset_peak()
    before = memory("VmRSS")
    print(f"{host}:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)
    _report(0.0, before)


async def receive_objects(address: str, root: Path, sizes: dict[str, int]) -> None:
    """Fetch the objects as an agent does, into an empty cache."""
    local_weights = LocalWeights(ObjectStore(CacheLimits(root, 1 << 50)))

    process.use(Security(None, insecure=True))  # two ends of one measurement, with nothing to hide

    async def ignore(_: FetchProgress) -> None: ...

    reset_peak()
    before, started = memory("VmRSS"), time.perf_counter()
    sources = [SourceAddress(address)]
    await Fetcher("receiver", local_weights, sizes, sources, WeightsSettings(), ignore).run()
    _report(time.perf_counter() - started, before)


def memory(field: str) -> int:
    """Return the resident bytes of this process, as the system counts them."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def reset_peak() -> None:
    """Reset the peak of this process's resident set (VmHWM)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _report(seconds: float, before: int = 0) -> None:
    print(json.dumps({"seconds": seconds, "grown": memory("VmHWM") - before}), flush=True)


def main() -> None:
    role, *arguments = sys.argv[1:]
    roles: dict[str, Callable[[], None]] = {
        "send-tcp": lambda: send_tcp(arguments[0], Path(arguments[1])),
        "receive-tcp": lambda: receive_tcp(arguments[0], Path(arguments[1]), int(arguments[2])),
        "send": lambda: asyncio.run(send_objects(arguments[0], Path(arguments[1]))),
        "receive": lambda: asyncio.run(
            receive_objects(
                arguments[0], Path(arguments[1]), json.loads(Path(arguments[2]).read_text(encoding="utf-8"))
            )
        ),
    }
    roles[role]()


if __name__ == "__main__":
    main()
