"""The proof on hosts with systemd: from empty boards to answers, through stops, reboots and removal."""

from __future__ import annotations

import re
from functools import partial

from testbed.tools.nspawn import installing, journal
from testbed.tools.nspawn.boards import Boards
from testbed.tools.nspawn.cluster import AGENT, DRAFT_NODE, DRAFT_SETTINGS, SETTINGS, Cluster
from testbed.tools.nspawn.gateway_service import UNIT as GATEWAY
from testbed.tools.nspawn.gateway_service import GatewayService
from testbed.tools.nspawn.guide.document import Document
from testbed.tools.nspawn.guide.person import Person, add_user, write_real_model
from testbed.tools.nspawn.host import Host
from testbed.tools.nspawn.steps import Steps
from testbed.tools.nspawn.upgrade.upgrading import upgraded_while_answering
from testbed.tools.nspawn.waiting import check, together, until

TOKENS = 160
_UNDER_WAY_S = 120.0
_STOP_S = 90.0  # more than TimeoutStopSec, after which systemd kills what is left
_WHOLE = re.compile(r"^[0-9]+ tokens \((length|eos)\)", re.MULTILINE)
_HANDED_BACK = "it is draining, and the session did not end in time"


def drained_while_answering(cluster: Cluster) -> None:
    """Stop the draft node while it answers.

    The answer must end whole, or with the error that says why it did not. systemd must not have to kill
    anything.
    """
    host = cluster.draft_node
    seen = _sessions(host)
    answer = cluster.start_generate("Count to a hundred.", TOKENS)
    until(lambda: _sessions(host) > seen or answer.poll() is not None, _UNDER_WAY_S, "an answer is under way")
    host.run(["systemctl", "stop", DRAFT_NODE], timeout_s=_STOP_S)
    done = cluster.asking.host.finish(answer, check=False)
    said = done.stdout + done.stderr
    whole = done.returncode == 0 and _WHOLE.search(said) is not None
    check(whole or _HANDED_BACK in said, f"the answer was cut ({done.returncode}): {said}")
    result = host.run(["systemctl", "show", "--value", "--property=Result", DRAFT_NODE]).stdout.strip()
    check(result == "success", f"systemctl stop of the draft node ended with {result}")


def _sessions(host: Host) -> int:
    found = host.run(["journalctl", "--no-pager", "--output=cat", f"_SYSTEMD_UNIT={DRAFT_NODE}"]).stdout
    return found.count('"event": "session_opened"')


RESTARTED_S = 180.0
REVOKED_S = 240.0
READY_S = 600.0  # for a pipeline to be found, loaded and connected
# More often than by default, agents fetch the list of revoked certificates and see whether a pipeline stands.
SHORT_WAITS = {"security": {"refresh_s": "3.0"}, "pipeline": {"look_s": "1.0"}}


class Proof:
    """The proof over `count` boards, the first of which is the draft node."""

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
        boards.make_image(self._install_from_nothing)
        boards.boot(self._count)
        steps.done(f"{self._count} boards and a laptop booted systemd")
        first, second, last = boards.hosts[0], boards.hosts[1], boards.hosts[-1]
        together(*(partial(installing.install_again, host) for host in boards.hosts))
        steps.done("install.sh again on each: nothing to install, the agents run")
        cluster = Cluster(boards, Document.read(boards.checkout))
        cluster.make()
        steps.done(
            "a cluster was made; every board joined it, a user of board1 and a user of the laptop as clients"
        )
        gateway = GatewayService(cluster, boards.checkout, first, last)
        gateway.install()
        steps.done("install.sh --serve on board1")
        cluster.start_draft_node()
        self._stands(cluster, "agents found each other by multicast, the model lies in blocks")
        cluster.look()
        steps.done("flowedge devices lists all boards, flowedge doctor found no error")
        together(cluster.ask, partial(_serves, gateway))
        steps.done(
            "generate --check: identical to the plain model; meanwhile the gateway joined and was asked from "
            "another board with a key, through systemctl stop, start and restart; journald has the requests"
        )
        self._killed(cluster, last)
        self._restarted(cluster, second)
        steps.done(f"flowedge upgrade: {upgraded_while_answering(cluster, boards.hosts)}")
        drained_while_answering(cluster)
        steps.done("systemctl stop of the draft node drained it: the answer under way was not cut")
        self._stopped(last)
        self._journals()
        together(partial(self._metrics, cluster, last), partial(write_real_model, first.root))
        self._real_model(cluster)
        self._revoked(cluster, last)
        first.run(["systemctl", "start", "--no-block", GATEWAY])
        together(*(partial(installing.uninstall, host) for host in (first, last)))
        steps.done(
            f"uninstall.sh --purge left nothing on {last.name}, and on board1, which had every service"
        )
        steps.end("everything was shown")

    def _install_from_nothing(self, host: Host) -> None:
        self._steps.done("a host without FlowEdge booted systemd")
        installing.install(host)
        add_user(host)
        for file in (SETTINGS, DRAFT_SETTINGS):
            Person(host).edits(file, SHORT_WAITS)
        self._steps.done("install.sh --offline on it")

    def _stands(self, cluster: Cluster, how: str) -> None:
        """Wait for the pipeline, and tell where the layers lie."""
        layers = cluster.wait_ready(READY_S)
        blocks = ", ".join(f"{name} {start} to {stop - 1}" for name, (start, stop) in layers)
        self._steps.done(f"{how}: {blocks}")

    def _stands_anew(self, cluster: Cluster, before: str) -> None:
        """Wait for another pipeline than `before`, and check that it answers as the plain model does."""
        until(lambda: cluster.pipeline() not in ("", before), READY_S, "there is a new pipeline")
        self._stands(cluster, "rediscovered, and the pipeline assembled anew")
        cluster.check_answer()
        self._steps.done("generate --check: identical to the plain model")

    def _killed(self, cluster: Cluster, host: Host) -> None:
        before = cluster.pipeline()
        host.run(["systemctl", "kill", "--signal=KILL", AGENT])
        restarted = f"{host.name}'s agent is restarted"
        until(lambda: _restarts(host) >= 1 and _is_active(host), RESTARTED_S, restarted)
        self._steps.done(f"the agent of {host.name} was killed; systemd restarted it")
        self._stands_anew(cluster, before)

    def _restarted(self, cluster: Cluster, host: Host) -> None:
        before = cluster.pipeline()
        host.restart()
        until(lambda: _is_active(host), RESTARTED_S, f"{host.name}'s agent starts at boot")
        self._steps.done(f"{host.name} was rebooted")
        self._stands_anew(cluster, before)

    def _stopped(self, host: Host) -> None:
        host.run(["systemctl", "stop", AGENT])
        result = _property(host, "Result")
        check(result == "success", f"systemctl stop of {host.name}'s agent ended with {result}")
        self._steps.done(f"systemctl stop of the agent of {host.name}: {result}")

    def _real_model(self, cluster: Cluster) -> None:
        """Have the pipeline run a model of the shape of the document's, which the first board alone has."""
        first = self._boards.hosts[0]
        cluster.take_real_model()
        first.run(["systemctl", "start", DRAFT_NODE])  # it was stopped while it answered
        blocks = cluster.wait_ready(READY_S)
        listed = cluster.ask_real_model()
        have = [host.name for host in self._boards.hosts if host.name in dict(blocks)]
        check(all(name in listed for name in have), f"flowedge models lists not all boards: {listed}")
        self._steps.done(
            "a model that only board1 had: the other boards fetched their layers, and it answers"
        )

    def _metrics(self, cluster: Cluster, host: Host) -> None:
        served = cluster.metrics(host)
        check("flowedge_draining 0.0" in served, f"the metrics of {host.name}: {served}")
        status = cluster.status(host)
        check("Status:" in status, f"systemctl status of {host.name}: {status}")
        self._steps.done(f"{host.name} serves metrics on the port that was set")

    def _revoked(self, cluster: Cluster, host: Host) -> None:
        cluster.revoke(host)
        found = cluster.findings(host)  # the doctor fetches the list itself
        check("certificate-revoked" in found, f"flowedge doctor on {host.name}: {sorted(found)}")
        until(lambda: not cluster.pipeline(), REVOKED_S, "the pipeline over the revoked board has ended")
        self._steps.done(f"{host.name} was revoked; its doctor says so, and no pipeline uses it")
        cluster.admit_again(host)
        cluster.wait_ready(READY_S)
        self._steps.done(f"{host.name} joined again with a new token, and the pipeline stands")

    def _journals(self) -> None:
        by_host = {h.name: journal.parse(h.name, h.run(journal.COMMAND).stdout) for h in self._boards.hosts}
        every = [entry for entries in by_host.values() for entry in entries]
        check(all(by_host.values()), "a board logged nothing")
        answers = set(journal.answered(by_host[self._boards.hosts[0].name]))
        check(len(answers) >= 3, f"the draft node logged {len(answers)} answers, 3 were given or more")
        for name, entries in by_host.items():
            missing = answers - journal.requests(entries)
            check(not missing, f"{name} logged nothing of the requests {sorted(missing)}")
        wrong = journal.errors(every)
        check(not wrong, "errors in the journals: " + "; ".join(f"{e.host}: {e.fields}" for e in wrong))
        self._steps.done(
            f"journald: {len(every)} events, no error; {len(answers)} requests are told of on all boards"
        )


def _serves(gateway: GatewayService) -> None:
    """Have the gateway join, ask it, stop it, start it, ask it again, restart it, and check its journal.

    Then it is stopped, because a gateway sets up a pipeline itself where it finds none. From here on only the
    draft node does.
    """
    gateway.join()
    gateway.serves("proof-1")
    gateway.stop()
    gateway.start()
    gateway.serves("proof-2")
    gateway.restart()
    gateway.check_journal("proof-2")
    gateway.stop()


def _restarts(host: Host) -> int:
    return int(_property(host, "NRestarts"))


def _is_active(host: Host) -> bool:
    return _property(host, "ActiveState") == "active"


def _property(host: Host, name: str) -> str:
    """Return a property of the agent's unit, which every board but the first runs."""
    return host.run(["systemctl", "show", "--value", f"--property={name}", AGENT]).stdout.strip()
