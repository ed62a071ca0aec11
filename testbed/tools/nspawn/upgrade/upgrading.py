"""Upgrading booted boards, one after the other, while a client asks."""

from __future__ import annotations

import json
import subprocess
import time

from testbed.tools.nspawn.cluster import AGENT, DRAFT_NODE, PORT, Cluster
from testbed.tools.nspawn.guide.person import HOME
from testbed.tools.nspawn.host import Host
from testbed.tools.nspawn.waiting import check, until

_VERSION = "0.1.1"
_NEXT = f"{HOME}/next"  # holds the name of the board whose turn it is, until it has been started again
_STOP = f"{HOME}/stop"
_ASKED_S = 300.0
_POLL_S = 0.2
_PYTHON = "/opt/flowedge/bin/python"


def upgraded_while_answering(cluster: Cluster, hosts: list[Host]) -> str:
    """Have the laptop upgrade all boards while it asks; return what came of its answers, in words.

    The command that upgrades one board is a message to this side, which gives the board another version and
    has systemd start it again: the hosts have no ssh. No answer may fail or be another one.
    """
    laptop = cluster.asking
    draft_node = f"{cluster.address(cluster.draft_node)}:{PORT}"
    asking = laptop.starts(f"{_PYTHON} -m testbed.tools.nspawn.upgrade.asking {draft_node} {_STOP}")
    ready = f"{_STOP}.ready"
    until(lambda: _exists(laptop.host, ready) or asking.poll() is not None, _ASKED_S, "a first answer")
    known = ",".join(f"{cluster.address(host)}:{PORT}" for host in hosts)
    turn = f"echo {{name}} >{_NEXT}; while [ -e {_NEXT} ]; do sleep {_POLL_S}; done"
    upgrading = laptop.starts(f"flowedge upgrade --to {_VERSION} --peers {known} --run '{turn}'")
    order = _upgrade_in_turn(laptop.host, upgrading, hosts)
    said = laptop.host.finish(upgrading).stdout
    laptop.host.run(["touch", _STOP])
    found = json.loads(laptop.host.finish(asking).stdout)
    check(sorted(order) == sorted(host.name for host in hosts), f"upgraded were {order}: {said}")
    check(order[-1] == cluster.draft_node.name, f"the draft node was not the last: {order}")
    check(not found["changed"], f"answers were others while boards were upgraded: {found}")
    check(found["recoveries"] > 0, f"no answer was under way when a board was upgraded: {found}")
    return (
        f"{', '.join(order)} to {_VERSION}; {found['answers']} answers meanwhile, all the same, "
        f"{found['recoveries']} times one went on after a board, the longest took {found['longest_s']:.1f} s"
    )


def _upgrade_in_turn(laptop: Host, upgrading: subprocess.Popen[str], hosts: list[Host]) -> list[str]:
    """Give each board that is named the new version; return their names in order."""
    by_name, order = {host.name: host for host in hosts}, list[str]()
    while upgrading.poll() is None:
        name = laptop.run(["cat", _NEXT], check=False).stdout.strip()
        if name:
            host = by_name[name]
            _upgrade(host, DRAFT_NODE if host is hosts[0] else AGENT)
            order.append(name)
            laptop.run(["rm", _NEXT])
        time.sleep(_POLL_S)
    return order


def _upgrade(host: Host, unit: str) -> None:
    """Have a board be of the new version, and systemd start its agent again."""
    (file,) = host.run(["find", "/opt/flowedge", "-path", "*/flowedge/version.py"]).stdout.split()
    host.run(["sed", "-i", f's/^VERSION = .*/VERSION = "{_VERSION}"/', file])
    host.run(["systemctl", "restart", unit])


def _exists(host: Host, path: str) -> bool:
    return host.run(["test", "-e", path], check=False).returncode == 0
