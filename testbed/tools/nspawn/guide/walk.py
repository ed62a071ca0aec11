"""The short form of the proof: docs/five-boards.md from the cluster to the removal, in about a minute."""

from __future__ import annotations

from testbed.tools.nspawn.boards import Boards
from testbed.tools.nspawn.cluster import AGENT, DRAFT_NODE, Cluster
from testbed.tools.nspawn.gateway.service import GatewayService
from testbed.tools.nspawn.guide.document import Document
from testbed.tools.nspawn.guide.person import add_user
from testbed.tools.nspawn.guide.prepared import prepare
from testbed.tools.nspawn.host import Host
from testbed.tools.nspawn.installing import uninstall
from testbed.tools.nspawn.steps import Steps
from testbed.tools.nspawn.waiting import check, until

READY_S = 120.0


class BoardsWalk:
    """The walk over `count` boards, the first of which is the draft node; the person sits at that board."""

    def __init__(self, boards: Boards, count: int, steps: Steps) -> None:
        self._boards = boards
        self._count = count
        self._steps = steps

    def run(self) -> None:
        """Run all steps.

        Raises:
            FlowEdgeError: when something could not be shown.
        """
        boards, steps = self._boards, self._steps
        boards.prepare()
        boards.make_image(self._prepare)
        boards.boot(self._count)
        for host in boards.hosts:
            host.run(["systemctl", "enable", "--now", AGENT])
        steps.done(f"{self._count} boards booted, with the agent as a service")
        cluster = Cluster(boards, Document.read(boards.checkout))
        cluster.make()
        cluster.join_people()
        steps.done("a cluster was made; every board joined it, and a user of board1 as a client")
        first, last = boards.hosts[0], boards.hosts[-1]
        gateway = GatewayService(cluster, boards.checkout, first, last)
        gateway.install()
        gateway.join()
        steps.done("install.sh --serve on board1; its gateway joined as a client, and has an API key")
        cluster.start_draft_node()
        until(lambda: _leads(cluster.draft_node), READY_S, "the draft node has a pipeline")
        cluster.look()
        steps.done("the pipeline stands; flowedge devices and flowedge doctor find nothing wrong")
        cluster.ask(check=False)
        steps.done("the first token")
        gateway.serves("walk-1")
        steps.done("the gateway, asked from another board with a key")
        gateway.stop()
        gateway.start()
        gateway.serves("walk-2")
        gateway.restart()
        gateway.check_journal("walk-2")
        steps.done("systemctl stop of the gateway, start and restart; journald has the requests")
        self._revoked(cluster, boards.hosts[-1])
        uninstall(first)
        steps.done("uninstall.sh --purge left nothing of agent, draft node, CA and gateway on board1")
        steps.end("the walk was shown")

    def _prepare(self, host: Host) -> None:
        prepare(host)
        add_user(host)
        self._steps.done("an image with FlowEdge")

    def _revoked(self, cluster: Cluster, host: Host) -> None:
        """Revoke a board; the doctor fetches the list itself, so that nothing has to be waited for."""
        cluster.revoke(host)
        found = cluster.findings(host)
        check("certificate-revoked" in found, f"flowedge doctor on {host.name}: {sorted(found)}")
        self._steps.done(f"{host.name} was revoked, and its doctor says so")


def _leads(host: Host) -> bool:
    journal = ["journalctl", "--no-pager", "--output=cat", f"--unit={DRAFT_NODE}"]
    return '"event": "role_loaded"' in host.run(journal).stdout
