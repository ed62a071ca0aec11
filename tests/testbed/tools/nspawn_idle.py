"""A host that boots and then does nothing, until a test ends it; run_enclosed has its arguments."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from testbed.tools.nspawn.boards import Boards
from testbed.tools.nspawn.enclosure import end_with_parent
from testbed.tools.nspawn.host import Host


def wait(host: Host) -> None:
    print("booted", host.run(["systemctl", "is-system-running"]).stdout.strip(), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    directory, group = Path(sys.argv[1]), sys.argv[2]
    end_with_parent(directory, group)
    boards = Boards(directory, group, checkout=Path(__file__).parents[3], wheels=Path(__file__).parent)
    boards.prepare()
    boards.make_image(wait)
