"""A stop of the draft node in the middle of an answer."""

from __future__ import annotations

import re

from testbed.tools.nspawn.cluster import DRAFT_NODE, Cluster
from testbed.tools.nspawn.host import Host
from testbed.tools.nspawn.waiting import check, until

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
