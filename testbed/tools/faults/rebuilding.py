"""What the rows of an answer cost to compute again, over the whole pipeline and on the lost stage alone.

python -m testbed.tools.faults.rebuilding [--scenario stages]

The rows of survivors are lost with the pipeline, and computed again with those of the lost stage. The
alternative is that survivors keep their rows, and the stage before the lost one what it has sent to it. This
prints on the costs of an emulated board how long both take, for the second stage.
"""

from __future__ import annotations

import argparse

from flowedge.planning.choices import forward_of, states_of
from flowedge.planning.profile_costs import ProfileCosts
from flowedge_testbed.emulation.emulate import emulate
from flowedge_testbed.scenario import find_scenario, read_scenario

CHUNK = 128
CONTEXTS = (128, 512, 2048, 8000)
STAGES = (4, 8)
LOST = 1


def chunks_of(context: int) -> list[tuple[int, int]]:
    """Return the rows before each chunk of a prompt, and its rows."""
    return [(cached, min(CHUNK, context - cached)) for cached in range(0, context, CHUNK)]


def whole_s(costs: ProfileCosts, stages: int, context: int) -> float:
    """Return the seconds until the last chunk has gone through all stages, which overlap."""
    computed, sent, there = [0.0] * stages, [0.0] * stages, 0.0
    for cached, rows in chunks_of(context):
        there = 0.0
        for stage in range(stages):
            computed[stage] = max(there, computed[stage]) + costs.stage_job(stage, forward_of(rows, cached))
            left = max(computed[stage], sent[stage]) + costs.transfer(stage, states_of(rows, cached))
            sent[stage] = left
            there = left + costs.latency(stage)
    return there


def alone_s(costs: ProfileCosts, context: int) -> float:
    """Return the seconds until the lost stage has its rows: of sending or computing, the longer."""
    chunks = chunks_of(context)
    computing = sum(costs.stage_job(LOST, forward_of(rows, cached)) for cached, rows in chunks)
    sending = sum(costs.transfer(LOST - 1, states_of(rows, cached)) for cached, rows in chunks)
    return max(computing, sending)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenario", default="stages")
    path = find_scenario(parser.parse_args().scenario)
    _, place = read_scenario(path).emulated_places()[0]
    print("| Stages | Tokens | whole pipeline, s | lost stage alone, s |\n|---|---|---|---|")
    for stages in STAGES:
        costs = ProfileCosts(emulate(place, ("bundled",), 0, {"stages": stages}, path.parent))
        for context in CONTEXTS:
            whole, alone = whole_s(costs, stages, context), alone_s(costs, context)
            print(f"| {stages} | {context} | {whole:.2f} | {alone:.2f} |")


if __name__ == "__main__":
    main()
