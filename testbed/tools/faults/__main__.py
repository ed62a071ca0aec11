"""Have devices fail while answers run: `python -m testbed.tools.faults --faults 40 --seed 1`.

A draft node, stages and a spare run as processes, each in a network namespace of its own if this is root,
else on loopback, where links do not fail. Clients ask for answers that are known, half of them through a
gateway; every answer has to come whole and unchanged, whatever fails. The exit code is 1 if an answer was
lost, changed, or stood still for a minute.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from flowedge.client import Client
from flowedge.cluster.process import Security
from flowedge_testbed.paced.namespaces import Namespaces, why_not
from testbed.tools.faults.answers import Askers, expected_answers, expected_streams
from testbed.tools.faults.boards import FAKETIME, Shelf, pause_until
from testbed.tools.faults.schedule import LASTS, NEEDS_NETWORK, SLOWS, drawn_faults
from testbed.tools.faults.verdict import Happened, sound, table, verdicts
from testbed.tools.gateway_overhead.gateway_process import started_gateway
from testbed.tools.soak.watching import Held, held_by


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the faults, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=20, help="number of faults")
    parser.add_argument("--seed", type=int, default=0, help="of faults and requests")
    parser.add_argument("--clients", type=int, default=4, help="clients that ask at the same time")
    parser.add_argument("--stages", type=int, default=3, help="stages of the pipeline")
    parser.add_argument("--spares", type=int, default=1, help="agents that take a lost stage's place")
    parser.add_argument(
        "--kinds",
        default=",".join(kind for kind in LASTS if kind not in SLOWS),
        help=f"kinds of faults, by commas, of {', '.join(LASTS)}",
    )
    parser.add_argument("--devices", help="devices that fail, by commas; all by default")
    parser.add_argument("--out", type=Path, help="directory for the logs of the agents; a temporary one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write faults and answers as JSON, too")
    options = parser.parse_args(arguments)
    reason = why_not()
    left_out = [*(NEEDS_NETWORK if reason is not None else ()), *(SLOWS if FAKETIME is None else ())]
    kinds = [kind for kind in options.kinds.split(",") if kind not in left_out]
    if reason is not None:
        print(f"no link and no disk fails: {reason}", file=sys.stderr)
    if FAKETIME is None and "clock" in options.kinds:
        print("no clock is stepped: Debian's package libfaketime is not installed", file=sys.stderr)
    clocks = "clock" in kinds
    network = None if reason is not None else Namespaces(1 + options.stages + options.spares)
    with tempfile.TemporaryDirectory(prefix="flowedge-faults-") as made:
        directory = options.out or Path(made)
        directory.mkdir(parents=True, exist_ok=True)
        with Shelf(directory, options.stages, options.spares, network, options.seed, clocks) as shelf:
            shelf.await_answer()
            with started_gateway("--peers", shelf.boards["d0"].address, "--insecure") as gateway:
                return _run(shelf, gateway.address, options, kinds)


def _run(shelf: Shelf, gateway: str, options: argparse.Namespace, kinds: Sequence[str]) -> int:
    address = shelf.boards["d0"].address
    askers = Askers(
        address,
        gateway,
        expected_answers(address),
        expected_streams(gateway),
        options.clients,
        options.seed,
    )
    held = _held(shelf)
    devices = options.devices.split(",") if options.devices else list(shelf.boards)
    happened: list[Happened] = []
    askers.start()
    try:
        for fault in itertools.islice(drawn_faults(kinds, devices, options.seed), options.faults):
            pause_until(time.monotonic() + fault.after_s)
            began = time.monotonic()
            shelf.begin(fault)
            pause_until(time.monotonic() + fault.lasts_s)
            shelf.end(fault)
            happened.append(Happened(fault, began, time.monotonic()))
            print(
                f"{len(happened)}: {fault.kind} of {fault.device} for {fault.lasts_s:g} s; "
                f"{len(askers.answers)} answers so far",
                file=sys.stderr,
                flush=True,
            )
    finally:
        all_ended = askers.end()
    print(table(verdicts(happened, askers.answers)))
    errors = Counter(answer.error for answer in askers.answers if answer.error)
    for error, times in errors.most_common(20):
        print(f"{times} times: {error}")
    left = _sessions_left(address)
    print(f"\n{_growth(held, _held(shelf))}")
    if options.json is not None:
        told = {
            "faults": [asdict(each) for each in happened],
            "answers": [asdict(each) for each in askers.answers],
        }
        options.json.write_text(json.dumps(told), encoding="utf-8")
    print(
        f"\n{len(happened)} faults under {len(askers.answers)} answers of {options.clients} clients, seed "
        f"{options.seed}; {left} sessions are left. {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}."
    )
    for crash in askers.crashes:
        print(f"a client ended with {crash}")
    good = sound(askers.answers) and all_ended and not askers.crashes and not left
    print("\nNo answer was lost or changed." if good else "\nAn answer was lost, changed, or has not ended.")
    return 0 if good else 1


def _held(shelf: Shelf) -> dict[int, tuple[str, Held]]:
    """Return the name of each process and what it holds, by the process id."""
    running = [(board.name, board.process) for board in shelf.boards.values()]
    return {
        process.pid: (name, held_by(process.pid, 0.0)) for name, process in running if process is not None
    }


def _growth(before: dict[int, tuple[str, Held]], after: dict[int, tuple[str, Held]]) -> str:
    """Return what the processes that ran all the time have taken more, as a text."""
    grown = [
        f"{name} {now.rss - then.rss:+.0f} MiB, {now.descriptors - then.descriptors:+d} descriptors"
        for pid, (name, then) in before.items()
        if pid in after
        for _, now in [after[pid]]
    ]
    return f"Held more by the processes that never ended: {'; '.join(grown) or 'none is left'}."


def _sessions_left(address: str) -> int:
    with Client(address, security=Security(None, insecure=True)) as client:
        client.await_ready(120)
        return client.status().running


if __name__ == "__main__":
    sys.exit(main())
