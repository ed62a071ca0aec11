"""Boot boards with systemd, install FlowEdge, form a cluster and answer: `python -m testbed.tools.nspawn`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from testbed.tools.nspawn.enclosure import run_enclosed
from testbed.tools.nspawn.possible import why_not
from testbed.tools.nspawn.steps import Steps

CHECKOUT = Path(__file__).parents[3]
LEAST_BOARDS = 3  # a draft node and two blocks of layers
_MAKE_WHEELS = CHECKOUT / "device_agents" / "make-wheels.sh"
_CANNOT = 2


def main() -> int:
    """Run the proof and return the exit status.

    The status is 0 if everything was shown, 1 if something was not, and 2 if this machine cannot boot hosts.
    """
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.nspawn", description=__doc__)
    parser.add_argument("--boards", type=int, default=LEAST_BOARDS, help="how many boards to boot")
    parser.add_argument(
        "--wheels", type=Path, help="folder that device_agents/make-wheels.sh filled; made anew if not given"
    )
    options = parser.parse_args()
    if options.boards < LEAST_BOARDS:
        parser.error(f"{LEAST_BOARDS} boards are needed: a draft node, and stages for two blocks of layers")
    reason = why_not()
    if reason is not None:
        print(f"hosts cannot be booted on this machine: {reason}", file=sys.stderr)
        return _CANNOT
    with tempfile.TemporaryDirectory(prefix="flowedge-wheels-") as made:
        wheels = options.wheels
        if wheels is None:
            wheels = Path(made)
            steps = Steps()
            subprocess.run([_MAKE_WHEELS, wheels], check=True)
            steps.done("make-wheels.sh")
        arguments = [str(CHECKOUT), str(wheels.resolve()), str(options.boards)]
        return run_enclosed("testbed.tools.nspawn.inside", arguments)


if __name__ == "__main__":
    sys.exit(main())
