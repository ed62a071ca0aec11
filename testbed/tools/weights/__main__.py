"""Print how fast weights are fetched over a link of a given rate, beside a plain TCP copy of the same bytes.

Sender and receiver are processes in network namespaces, which takes root. Both write to the same disk.
Run: python -m testbed.tools.weights [--bytes 1e9] [--objects 16] [--mbps 1000] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from flowedge.device.disk_cache.limits import CacheLimits
from flowedge.device.disk_cache.objects import ObjectStore
from flowedge_testbed.paced.namespaces import FRAME_BYTES, FRAME_PAYLOAD, Namespaces, why_not
from testbed.tools.weights.ends import sizes_of

DEADLINE_S = 600.0


@dataclass(frozen=True)
class Copy:
    """One copy: its rate in bytes a second, and the most memory in bytes that each end grew by."""

    rate: float
    sender_grown: float = 0
    receiver_grown: float = 0


def copy_tcp(network: Namespaces, giver: Path, scratch: Path, total: int) -> Copy:
    """Copy all bytes over one connection to one file."""
    target = scratch / "copy"
    sender = _start(network, 0, "send-tcp", network.hosts[0], str(giver))
    try:
        answer = _run(network, 1, "receive-tcp", _address(sender), str(target), str(total))
    finally:
        _end(sender)
        target.unlink(missing_ok=True)
    return Copy(total / answer["seconds"])


def copy_objects(network: Namespaces, giver: Path, scratch: Path, listing: Path, total: int) -> Copy:
    """Copy all objects as agents do."""
    taker = scratch / "taker"
    sender = _start(network, 0, "send", network.hosts[0], str(giver))
    try:
        answer = _run(network, 1, "receive", _address(sender), str(taker), str(listing))
        output, _ = sender.communicate("", DEADLINE_S)
        sent = json.loads(output.splitlines()[-1])
    finally:
        _end(sender)
        shutil.rmtree(taker, ignore_errors=True)
    return Copy(total / answer["seconds"], sent["grown"], answer["grown"])


def fill(root: Path, total: int, objects: int) -> None:
    """Make objects of random bytes, all equally large."""
    store = ObjectStore(CacheLimits(root, 1 << 50))
    for _ in range(objects):
        store.put(os.urandom(total // objects))


def _start(network: Namespaces, place: int, *arguments: str) -> subprocess.Popen[str]:
    command = network.enter(place, [sys.executable, "-m", "testbed.tools.weights.ends", *arguments])
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _run(network: Namespaces, place: int, *arguments: str) -> dict[str, float]:
    command = network.enter(place, [sys.executable, "-m", "testbed.tools.weights.ends", *arguments])
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _address(sender: subprocess.Popen[str]) -> str:
    assert sender.stdout is not None
    return sender.stdout.readline().strip()


def _end(sender: subprocess.Popen[str]) -> None:
    if sender.poll() is None:
        sender.kill()
    sender.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=float, default=1e9)
    parser.add_argument("--objects", type=int, default=16, help="of equal size")
    parser.add_argument("--mbps", type=float, default=1000.0, help="1e6 bits a second on the wire, each way")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    reason = why_not()
    if reason is not None:
        raise SystemExit(f"no link can be shaped here: {reason}")
    with tempfile.TemporaryDirectory(prefix="flowedge-weights-") as scratch_name, Namespaces(2) as network:
        scratch = Path(scratch_name)
        giver, listing = scratch / "giver", scratch / "listing.json"
        fill(giver, int(options.bytes), options.objects)
        sizes = sizes_of(giver)
        total = sum(sizes.values())
        listing.write_text(json.dumps(sizes), encoding="utf-8")
        for place in range(2):
            network.limit(place, options.mbps * FRAME_PAYLOAD / FRAME_BYTES)
        plain, ours = [], []
        for _ in range(options.repeats):
            plain.append(copy_tcp(network, giver, scratch, total))
            ours.append(copy_objects(network, giver, scratch, listing, total))
    print(
        f"{total / 1e6:.0f} MB in {len(sizes)} objects over {options.mbps:g} Mbit/s, "
        f"{options.repeats} copies each, in turns; "
        f"{platform.machine()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
    )
    tcp, weights = (statistics.median(copy.rate for copy in copies) for copies in (plain, ours))
    print(f"plain TCP   {tcp / 1e6:6.1f} MB/s   ({', '.join(f'{copy.rate / 1e6:.1f}' for copy in plain)})")
    print(f"weights     {weights / 1e6:6.1f} MB/s   ({', '.join(f'{copy.rate / 1e6:.1f}' for copy in ours)})")
    print(f"share       {weights / tcp:6.1%}")
    grown = max(copy.sender_grown for copy in ours), max(copy.receiver_grown for copy in ours)
    print(f"memory grew by {grown[0] / 2**20:.0f} MiB (sender), {grown[1] / 2**20:.0f} MiB (receiver)")


if __name__ == "__main__":
    main()
