"""The first process of the namespaces, which boots the hosts, runs the proof and ends everything."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flowedge.core.errors import FlowEdgeError
from testbed.tools.nspawn.boards import Boards
from testbed.tools.nspawn.enclosure import end_everything, end_with_parent
from testbed.tools.nspawn.proof import Proof
from testbed.tools.nspawn.steps import Steps


def main(arguments: list[str]) -> int:
    """Run the proof. The arguments are run_enclosed's, the checkout, the wheels and the number of boards."""
    directory, group = Path(arguments[0]), arguments[1]
    end_with_parent(directory, group)
    steps = Steps()
    boards = Boards(directory, group, checkout=Path(arguments[2]), wheels=Path(arguments[3]))
    try:
        Proof(boards, int(arguments[4]), steps).run()
    except FlowEdgeError as error:
        steps.fail(error)
        for host in boards.every:
            steps.tell(host.last_output_line())
        return 1
    finally:
        end_everything(directory, group)
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # threads that were killed with everything else cannot be waited for
