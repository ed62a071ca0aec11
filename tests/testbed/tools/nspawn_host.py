"""A host that boots and then does nothing, until a test ends it.

The arguments are run_enclosed's and the kind of host, "idle" or "board". A board runs install.sh, with this
environment in place of wheels, then starts the agent as a service, and then runs uninstall.sh --purge.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from testbed.tools.nspawn import installing
from testbed.tools.nspawn.boards import Boards
from testbed.tools.nspawn.cluster import AGENT
from testbed.tools.nspawn.enclosure import end_with_parent
from testbed.tools.nspawn.guide import prepared
from testbed.tools.nspawn.host import Host


def install_and_uninstall(host: Host) -> None:
    prepared.prepare(host)
    host.run(["systemctl", "enable", "--now", AGENT])  # ends when the agent says that it is ready
    host.run(["systemctl", "stop", AGENT])
    assert host.run(["systemctl", "show", "--value", "--property=Result", AGENT]).stdout == "success\n"
    installing.uninstall(host)


def main(directory: Path, group: str, kind: str) -> None:
    """Boot the host."""
    end_with_parent(directory, group)
    wheels = directory / "wheels"
    checkout = Path(__file__).parents[3]
    boards = Boards(directory, group, checkout, wheels, prepared.shared())
    boards.prepare()
    wheels.mkdir()
    prepared.write_wheels(wheels)

    def use(host: Host) -> None:
        print("booted", host.run(["systemctl", "is-system-running"]).stdout.strip(), flush=True)
        if kind == "board":
            install_and_uninstall(host)
            print("uninstalled", flush=True)
        time.sleep(600)

    boards.make_image(use)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
