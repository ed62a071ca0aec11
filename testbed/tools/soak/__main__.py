"""Use a gateway for a long time: `python -m testbed.tools.soak --minutes 60`.

Clients hold conversations, ask for objects of schemas, tool calls and long answers, leave streams, and send
bad requests to `flowedge serve --stages 2`; with --freeze-every, stages stand still meanwhile, so that the
pipeline is set up again under them. The memory, descriptors and threads of each process are sampled beside,
and judged after the first ten minutes. The exit code is 1 if a process grows or ends, or an answer is wrong.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from flowedge.core.errors import DeadlineError, FlowEdgeError
from testbed.tools.gateway_overhead.gateway_process import StartedGateway, started_gateway
from testbed.tools.soak.freezes import Freezes
from testbed.tools.soak.operations import OPERATIONS, SoakClient
from testbed.tools.soak.verdict import judge, verdict_table
from testbed.tools.soak.watching import Watch, processes_of

_READY_S = 300.0
_SAID_EVERY_S = 60.0
_MIB = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak, print its table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long the clients ask")
    parser.add_argument("--settle-minutes", type=float, default=10, help="not judged, at the beginning")
    parser.add_argument("--clients", type=int, default=4, help="clients that ask at the same time")
    parser.add_argument("--stages", type=int, default=2, help="stages of the pipeline on this machine")
    parser.add_argument("--every", type=float, default=10, metavar="SECONDS", help="between two samples")
    parser.add_argument(
        "--freeze-every", type=float, metavar="SECONDS", help="between two stages that stand still; none does"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the choice of requests and stages")
    parser.add_argument("--samples", type=Path, metavar="FILE", help="write the samples as JSON, too")
    options = parser.parse_args(arguments)
    with started_gateway("--stages", str(options.stages), "--model", "bundled") as gateway:
        _await_ready(gateway.address)
        before = _log_bytes(gateway)
        clients = _Clients(gateway.address, options.clients, options.seed)
        processes = processes_of(gateway.pid)
        freezes = Freezes(processes, options.freeze_every, options.seed)
        with Watch(processes, options.every) as watch, clients, freezes:
            _wait(60 * options.minutes, clients)
        logs = _log_bytes(gateway) - before
    if options.samples is not None:
        rows = {name: [asdict(held) for held in samples] for name, samples in watch.samples.items()}
        options.samples.write_text(json.dumps(rows), encoding="utf-8")
    settle_s = 60 * options.settle_minutes
    verdicts = [judge(name, samples, settle_s) for name, samples in watch.samples.items()]
    print(verdict_table(verdicts, watch.samples, settle_s))
    print(
        f"\n{options.minutes:g} minutes, judged after {options.settle_minutes:g}; {options.clients} clients; "
        f"{clients.said()}; "
        f"{freezes.done} stages stood still. Logs: {logs / _MIB * 60 / options.minutes:.1f} MiB an hour. "
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}."
    )
    for error, times in clients.errors.most_common(20):
        print(f"{times} times: {error}")
    for name in sorted(watch.gone):
        print(f"{name} has ended during the soak")
    sound = not any(verdict.faults for verdict in verdicts) and not clients.errors and not watch.gone
    print("\nThe soak is flat." if sound else "\nThe soak is NOT flat.")
    return 0 if sound else 1


class _Clients:
    """Clients that ask, each in a thread, while the context lasts.

    Attributes:
        done: how often each operation was carried out; errors: how often each error came.
    """

    def __init__(self, address: str, number: int, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(address, seed + place), name=f"client-{place}")
            for place in range(number)
        ]

    def __enter__(self) -> _Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def said(self) -> str:
        """Return the counts as a text."""
        counts = ", ".join(f"{self.done[name]} {name}" for name in OPERATIONS)
        return f"{self.done.total()} operations ({counts}), {self.errors.total()} errors"

    def _run(self, address: str, seed: int) -> None:
        client, chance = SoakClient(address, seed), random.Random(seed)
        names, weights = list(OPERATIONS), [weight for _, weight in OPERATIONS.values()]
        while not self._ended.is_set():
            (name,) = chance.choices(names, weights)
            error = ""
            try:
                OPERATIONS[name][0](client)
            except (FlowEdgeError, OSError, http.client.HTTPException, ValueError, KeyError) as raised:
                error = f"{name}: {type(raised).__name__}: {raised}"
            with self._lock:
                self.done[name] += 1
                if error:
                    self.errors[error] += 1


def _wait(seconds: float, clients: _Clients) -> None:
    """Wait, and say every minute how far the soak is."""
    began = time.monotonic()
    while (left := began + seconds - time.monotonic()) > 0:
        time.sleep(min(left, _SAID_EVERY_S))
        print(f"{(time.monotonic() - began) / 60:.0f} min: {clients.said()}", flush=True)


def _await_ready(address: str) -> None:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(host, int(port), timeout=_READY_S)
        connection.request("GET", "/health/ready")
        ready = connection.getresponse().status == 200
        connection.close()
        if ready:
            return
        time.sleep(0.5)
    raise DeadlineError(f"no pipeline of the gateway was ready within {_READY_S:g} s")


def _log_bytes(gateway: StartedGateway) -> int:
    return sum(path.stat().st_size for path in gateway.folder.rglob("*.log*"))


if __name__ == "__main__":
    raise SystemExit(main())
