"""Print the costs of FlowEdge apart from models: a hop, the draft node's bookkeeping, an agent's memory.

Run: make bench-overhead, or python -m testbed.tools.overhead [--part hop|draft-node|start|memory].
"""

from __future__ import annotations

import argparse
import os
import platform

from testbed.tools.overhead.draft_work import RESULT, VERIFIED, measure_draft_work
from testbed.tools.overhead.hop import measure_hop
from testbed.tools.overhead.memory import measure_memory
from testbed.tools.overhead.start import measure_discovery

ROWS, WIDTH = 64, 4096
STRATEGIES = ("auto", "flowspec")  # whose bookkeeping is measured
PARTS = ("hop", "draft-node", "start", "memory")


def report_hop(hops: int) -> None:
    times = measure_hop(ROWS, WIDTH, hops)
    print(f"hop: serialise, send, receive, deserialise {ROWS} x {WIDTH} float16 between two processes")
    print(f"     over loopback TCP, {times.frame_bytes} bytes a frame, {hops} hops one after the other:")
    print(f"     p50 {times.quantile(0.5) * 1e3:.2f} ms   p99 {times.quantile(0.99) * 1e3:.2f} ms")


def report_draft_node(new_tokens: int) -> None:
    print(f"draft node: its state machine's own time in ms, bundled pair, 4 stages, {new_tokens} new tokens;")
    print("     no model, no link, no sampling; medians:")
    for strategy in STRATEGIES:
        work = measure_draft_work(strategy, new_tokens)
        verification_s = sum(work[kind].seconds for kind in (RESULT, VERIFIED))
        print(f"     {strategy}: {verification_s * 1e3:.3f} a verification, the segment's return included")
        for kind, events in sorted(work.items(), key=lambda item: -item[1].seconds * item[1].count):
            parts = sorted(events.parts.items(), key=lambda item: -item[1])
            shown = ", ".join(f"{part} {seconds * 1e3:.3f}" for part, seconds in parts)
            print(f"       {kind:8} {events.count:4} times {events.seconds * 1e3:.3f}: {shown}")


def report_memory() -> None:
    print("memory of agents that serve the bundled pair over 2 stages, MiB:")
    for agent in measure_memory(stages=2):
        beyond = agent.loaded_bytes - agent.weight_bytes - agent.cache_bytes
        print(
            f"     {agent.role:11} idle {agent.idle_bytes / 2**20:6.1f}"
            f"   loaded {agent.loaded_bytes / 2**20:6.1f}"
            f"   weights {agent.weight_bytes / 2**20:6.1f}   planned KV {agent.cache_bytes / 2**20:6.1f}"
            f"   loaded minus weights and KV {beyond / 2**20:6.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="all when not given")
    parser.add_argument("--hops", type=int, default=500)
    parser.add_argument("--new-tokens", type=int, default=400)
    arguments = parser.parse_args()
    parts = arguments.part or PARTS
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    if "hop" in parts:
        report_hop(arguments.hops)
    if "draft-node" in parts:
        report_draft_node(arguments.new_tokens)
    if "start" in parts:
        print(
            f"start: two agents started at once are both found by zeroconf after {measure_discovery():.2f} s"
        )
    if "memory" in parts:
        report_memory()


if __name__ == "__main__":
    main()
