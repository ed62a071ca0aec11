"""Measure what the gateway adds to requests: `python -m testbed.tools.gateway_overhead`."""

from __future__ import annotations

import argparse
import os
import platform
import resource

from flowedge.agent.local_cluster import LocalCluster
from flowedge.client.assembly import PipelineSpec, assemble
from testbed.tools.gateway_overhead.gateway_process import started_gateway
from testbed.tools.gateway_overhead.measuring import (
    IDLE,
    STREAMS,
    Overhead,
    measure_idle,
    measure_memory,
    measure_overhead,
)


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
        with started_gateway("--peers", draft_node) as gateway:
            overhead = measure_overhead(draft_node, gateway.address, options.pairs, options.tokens)
            without, beside = measure_idle(gateway.address, rounds=3, asked=10)
            memory = measure_memory(gateway.address, gateway.pid, options.rounds, tokens=16)
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


def _allow_descriptors(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, hard)), hard))


if __name__ == "__main__":
    main()
