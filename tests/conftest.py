"""Fixtures of all tests: agents, directories, and a check that no process is left behind."""

from __future__ import annotations

import gc
import os
import signal
import uuid
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from flowedge.client.assembly import PipelineSpec, assemble, release
from tests.support.blocks import BLOCKS, split
from tests.support.gateways import GatewayProcess, gateway_before
from tests.support.processes import AgentProcess, agents, forking, left_behind
from tests.support.scheduling import Units, shared, slow_first

pytest_plugins = ["tests.support.costs"]

# Torch's products of bfloat16 by AMX have other bits for some numbers of rows so rarely that the self-test of
# exact blocks may miss it. FlowEdge's kernels compute on CPUs; where torch computes here, AMX is not used.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

_cases: Counter[str] = Counter()  # collected, of the tests with the mark one_in


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--block",
        choices=[*map(str, range(BLOCKS)), "all"],
        help="of the tests with the mark proof, run a fifth, or all in the lengths that they have there",
    )


def pytest_configure() -> None:
    """Let tests interrupt commands where the tests run in the background of a shell, which ignores Ctrl-C.

    Trio's plugin of hypothesis, of which no test has need, takes half a second to find all uses of an object.
    """
    os.environ["HYPOTHESIS_NO_PLUGINS"] = "1"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without collection of garbage, which would take a third of the time: tests import torch.

    All modules and tests stay, so later collections, as after a lack of memory, pass them by.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave to `make proof` what `one_in` does not leave to `make test`."""
    marker = item.get_closest_marker("one_in")
    if marker is None or item.get_closest_marker("proof") is not None:
        return
    test = item.nodeid.partition("[")[0]
    if _cases[test] % marker.args[0]:
        item.add_marker(pytest.mark.proof)
    _cases[test] += 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    block = config.getoption("--block")
    if block not in (None, "all"):
        items[:], others = split(items, int(block))
        config.hook.pytest_deselected(items=others)
    items[:] = slow_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Units:
    """Deal tests out by `unit_of`; pytest-xdist 3.8 ignores its own marks of groups under pytest 9.2."""
    config.option.loadscopereorder = False
    return Units(config, log)


def names_of_agents(count: int) -> list[str]:
    """Return names for a draft node and stages, unlike those of all other clusters on the network."""
    token = uuid.uuid4().hex[:6]
    return [f"test-{token}-d0", *(f"test-{token}-v{place}" for place in range(1, count))]


@pytest.fixture(scope="session", params=shared("cluster4"))
def cluster4(processes_end: None) -> Iterator[str]:
    """The address of the draft node of the bundled models over 4 stages, each a real process."""
    with agents(names_of_agents(5), advertise=True) as cluster:
        addresses = [agent.address for agent in cluster]
        stages = tuple(addresses[1:])
        spec = PipelineSpec(draft_node=addresses[0], stages=stages, drafter=("bundled",), dtype="float32")
        assemble(spec, lambda *_: None)
        yield addresses[0]


@pytest.fixture(scope="session")
def gateway4(cluster4: str) -> Iterator[GatewayProcess]:
    """`flowedge serve` in front of cluster4."""
    with gateway_before(cluster4) as gateway:
        yield gateway


@pytest.fixture(scope="session", params=shared("agents9"))
def agents9(processes_end: None) -> Iterator[list[AgentProcess]]:
    """Nine agents, each a real process, whose logs are JSON; see `idle_agents`."""
    with agents(names_of_agents(9), "--log-format", "json", advertise=True) as cluster:
        yield cluster


@pytest.fixture
def idle_agents(agents9: list[AgentProcess]) -> Iterator[list[AgentProcess]]:
    """Nine idle agents, which a test may make pipelines of; they are idle again after the test."""
    yield agents9
    release([agent.address for agent in agents9], "")


@pytest.fixture(scope="session", autouse=True)
def directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Directories for cache and state, which agents inherit: no test writes to those of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "FLOWEDGE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setitem(os.environ, "FLOWEDGE_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def processes_end() -> Iterator[None]:
    """Check that no test leaves a process behind."""
    with forking():
        yield
        assert not left_behind(), "processes were left running"
