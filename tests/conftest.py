"""What all tests share: one cluster of real processes, and a check that none is left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest

from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.cluster.local import LocalCluster
from flowedge.models.libraries import import_libraries

import_libraries()  # before the tests do


@pytest.fixture(scope="session")
def cluster4(processes_end: None) -> Iterator[str]:
    """The draft node's address of the bundled pair over 4 stages, each a real process.

    It is started once and reused: mark its users xdist_group("cluster4"), so that one worker has it.
    """
    with LocalCluster(4, name="test") as cluster:
        addresses = [agent.address for agent in cluster.agents]
        assemble(PipelineSpec(addresses[0], tuple(addresses[1:]), "bundled", "bundled"), lambda *_: None)
        yield addresses[0]


@pytest.fixture(scope="session", autouse=True)
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Agents inherit it, so that quantised weights are not kept in the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "FLOWEDGE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def processes_end() -> Iterator[None]:
    """No test leaves an agent behind."""
    yield
    left = [
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "flowedge.cli.main" in child.cmdline()
    ]
    assert not left, f"agents were left running: {left}"
