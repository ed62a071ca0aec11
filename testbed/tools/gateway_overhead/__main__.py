"""Measure what the gateway adds to requests: `python -m testbed.tools.gateway_overhead`."""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowedge.agent.local_cluster import LocalCluster
from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.cluster.process import VARIABLE, process_secret
from flowedge.core.errors import DeadlineError, DeviceError
from flowedge.device.process import module_command
from testbed.tools.gateway_overhead.measuring import (
    IDLE,
    STREAMS,
    Overhead,
    measure_idle,
    measure_memory,
    measure_overhead,
)

_START_S = 120.0
_STOP_S = 30.0
_LISTENING = re.compile(r"listening on (\S+:\d+)")


def main() -> None:
    """Run all measurements and print them as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.gateway_overhead", description=__doc__)
    parser.add_argument("--stages", type=int, default=2, help="stages of the pipeline on this machine")
    parser.add_argument("--pairs", type=int, default=60, help="pairs of requests, through HTTP and directly")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5, help=f"rounds of {STREAMS} streams at once")
    options = parser.parse_args()
    _allow_descriptors(IDLE + 500)
    with LocalCluster(options.stages) as cluster:
        draft_node, *stages = (agent.address for agent in cluster.agents)
        assemble(
            PipelineSpec(draft_node=draft_node, stages=tuple(stages), drafter=("bundled",)),
            lambda *_: None,
        )
        with _gateway(draft_node) as (address, pid):
            overhead = measure_overhead(draft_node, address, options.pairs, options.tokens)
            without, beside = measure_idle(address, rounds=3, asked=10)
            memory = measure_memory(address, pid, options.rounds, tokens=16)
    _show_overhead(overhead)
    print(
        f"\nWith {IDLE} connections that do nothing, beside none: `/health/live` {_ms(beside.page)} and "
        f"{_ms(without.page)} ms, the first token {_ms(beside.first)} and {_ms(without.first)} ms."
    )
    shown = ", ".join(f"{mib:.1f}" for mib in memory)
    print(f"\nResident MiB of the gateway before and after each round of {STREAMS} streams at once: {shown}.")
    print(
        f"\nMedians of {options.pairs} pairs of answers with {options.tokens} tokens, in turns; the bundled "
        f"pair over {options.stages} stages; all processes on one machine: {os.cpu_count()} cores, "
        f"{platform.machine()}, Python {platform.python_version()}."
    )


def _show_overhead(overhead: Overhead) -> None:
    print("| | through gRPC | through HTTP | added |\n| --- | --- | --- | --- |")
    rows = (
        ("first token, ms", overhead.direct.first, overhead.served.first, overhead.added.first),
        ("each further token, ms", overhead.direct.between, overhead.served.between, overhead.added.between),
    )
    for name, *seconds in rows:
        print(f"| {name} | {' | '.join(map(_ms, seconds))} |")


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"


@contextmanager
def _gateway(draft_node: str) -> Iterator[tuple[str, int]]:
    """Yield the address and the process id of a gateway in front of a draft node of this command."""
    command = module_command("flowedge.cli.main")
    command += ["serve", "--peers", draft_node, "--listen", "127.0.0.1:0", "--config", os.devnull]
    with tempfile.TemporaryDirectory(prefix="flowedge-overhead-") as state:
        log = Path(state) / "gateway.log"
        own = {"FLOWEDGE_STATE_DIR": state, "PYTHONUNBUFFERED": "1", VARIABLE: process_secret()}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--exit-with-parent"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own},
            )
        try:
            yield _address_in(log, process), process.pid
        finally:
            process.terminate()
            process.communicate(timeout=_STOP_S)


def _address_in(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        text = log.read_text(encoding="utf-8")
        found = _LISTENING.search(text)
        if found:
            return found.group(1)
        if ended:
            raise DeviceError("gateway", f"it ended at its start: {text.strip()[-500:]}")
        time.sleep(0.05)
    raise DeadlineError(f"the gateway did not listen within {_START_S:g} s")


def _allow_descriptors(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, hard)), hard))


if __name__ == "__main__":
    main()
