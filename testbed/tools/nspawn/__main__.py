"""Boot boards with systemd, install FlowEdge, form a cluster and answer: `python -m testbed.tools.nspawn`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from testbed.tools.nspawn.enclosure import run_enclosed
from testbed.tools.nspawn.guide.prepared import write_wheels
from testbed.tools.nspawn.inside import LONG, SHORT
from testbed.tools.nspawn.possible import why_not

CHECKOUT = Path(__file__).parents[3]
LEAST_BOARDS = 3  # a draft node and two blocks of layers
LEAST_SHORT = 2  # in the short form
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
    parser.add_argument(
        "--short",
        action="store_true",
        help="use this environment in place of an installation, and fewer steps",
    )
    options = parser.parse_args()
    least = LEAST_SHORT if options.short else LEAST_BOARDS
    if options.boards < least:
        parser.error(f"{least} boards are needed: a draft node, and stages for its blocks of layers")
    reason = why_not()
    if reason is not None:
        print(f"hosts cannot be booted on this machine: {reason}", file=sys.stderr)
        return _CANNOT
    with tempfile.TemporaryDirectory(prefix="flowedge-wheels-") as made:
        wheels = options.wheels
        if options.short:
            wheels = Path(made)
            write_wheels(wheels)
        elif wheels is None:
            wheels = Path(made)
            subprocess.run([_MAKE_WHEELS, wheels], check=True)
        arguments = [
            str(CHECKOUT),
            str(wheels.resolve()),
            str(options.boards),
            SHORT if options.short else LONG,
        ]
        return run_enclosed("testbed.tools.nspawn.inside", arguments)


if __name__ == "__main__":
    sys.exit(main())
