"""How tests are dealt out to processes: what shares something costly goes to one of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from xdist.scheduler import LoadScopeScheduling

# Files that share more than their own fixtures: one cluster of agents, which takes long to start.
SHARING = {
    "tests/agent/operations/test_logs.py": "clusters",
    "tests/client/test_timelines.py": "clusters",
    "tests/cli/test_eagle3.py": "clusters",
    "tests/cli/test_families.py": "clusters",
    "tests/cli/test_generate.py": "clusters",
    "tests/profiling/test_profile.py": "clusters",
    "tests/equality/test_processes.py": "clusters",
}
# Files of long tests that share nothing.
APART = {"tests/engine/test_histories.py"}


def unit_of(nodeid: str) -> str:
    """The unit of work that a test belongs to: its file, unless the file is named above."""
    file = nodeid.partition("::")[0]
    return nodeid if file in APART else SHARING.get(file, file)


class Units(LoadScopeScheduling):
    """Gives each unit to one process, in the order that they were collected in."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def slow_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Units with a slow test first, so that no process is left with a long one at the end."""
    slow = {unit_of(item.nodeid) for item in items if item.get_closest_marker("slow") is not None}
    return sorted(items, key=lambda item: unit_of(item.nodeid) not in slow)
