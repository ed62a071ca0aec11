"""The draft node that answered last is asked while the network is searched."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from flowedge.cli.main import run
from flowedge.cli.pipelines.last_draft_node import KnownDraftNode, LastDraftNodes
from flowedge.client import Client
from flowedge.core.errors import DeviceError

KITCHEN = KnownDraftNode("kitchen", "k1", "192.168.1.5:7070")
HERE = KnownDraftNode("here", "h1", "127.0.0.1:7070")
ASK = ["generate", "--prompt", "Tell me a story about a lamp.", "--max-new-tokens", "4"]


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of the draft nodes, in a directory that does not exist yet."""
    monkeypatch.setenv("FLOWEDGE_STATE_DIR", str(tmp_path / "a" / "state"))
    return tmp_path / "a" / "state" / "last-draft-nodes.json"


class HangingSearch:
    """A search of the network that finds nobody, and lasts until it is cancelled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began = self.cancelled = False
        monkeypatch.setattr("flowedge.cli.pipelines.network.discover", self.discover)

    async def discover(self, *_: object, **__: object) -> list[object]:
        self.began = True
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return []


@pytest.fixture
def failing_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of the network that fails after a moment, in which a known draft node would have answered."""

    async def discover(*_: object, **__: object) -> list[object]:
        await asyncio.sleep(0.5)
        raise DeviceError("this one", "the network is searched")

    monkeypatch.setattr("flowedge.cli.pipelines.network.discover", discover)


def known_at(address: str) -> KnownDraftNode:
    with Client(address) as client:
        device = client.describe()
    return KnownDraftNode(device.name, device.id, address)


def test_a_ready_pipeline_answers_without_waiting_for_the_search(
    cluster4: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    search = HangingSearch(monkeypatch)
    known = known_at(cluster4)
    LastDraftNodes("").remember(known)
    assert run(ASK) == 0
    assert f"{known.name}: has the pipeline of bundled ready" in capsys.readouterr().err
    assert (search.began, search.cancelled) == (True, True)
    assert LastDraftNodes("").recall() == known


@pytest.mark.parametrize("change", [{"id": "another"}, {"name": "another"}, {"address": "127.0.0.1:1"}])
def test_another_device_at_the_address_is_not_used(
    cluster4: str, change: dict[str, str], failing_search: None, capsys: pytest.CaptureFixture[str]
) -> None:
    LastDraftNodes("").remember(replace(known_at(cluster4), **change))
    assert run(ASK) == 1
    assert "the network is searched" in capsys.readouterr().err


def test_another_pipeline_than_the_one_asked_for_is_not_used(
    cluster4: str, failing_search: None, capsys: pytest.CaptureFixture[str]
) -> None:
    LastDraftNodes("").remember(known_at(cluster4))
    assert run([*ASK, "--drafter", "ngram"]) == 1
    assert "the network is searched" in capsys.readouterr().err
    assert run(ASK) == 0, "a search that fails is no obstacle"


def test_each_cluster_and_group_has_its_own(state: Path) -> None:
    LastDraftNodes("0123456789abcdef").remember(KITCHEN)
    LastDraftNodes("", "lab").remember(HERE)
    assert LastDraftNodes("0123456789abcdef").recall() == KITCHEN
    assert LastDraftNodes("fedcba9876543210").recall() is None
    assert LastDraftNodes("", "lab").recall() == HERE
    assert LastDraftNodes("").recall() is None
    assert state.stat().st_mode & 0o777 == 0o600


def test_outside_of_a_cluster_only_loopback_is_remembered(state: Path) -> None:
    LastDraftNodes("").remember(KITCHEN)
    assert not state.exists()
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"/": {"name": "kitchen", "id": "k1", "address": "192.168.1.5:7070"}}))
    assert LastDraftNodes("").recall() is None


BROKEN_FILES = (
    "{",
    "[]",
    '{"/": 3}',
    '{"/": {"name": "here", "id": "h1"}}',
    '{"/": {"name": "here", "id": 7, "address": "127.0.0.1:7070"}}',
    '{"/": {"name": "here", "id": "h1", "address": "nowhere"}}',
    "\xff" * 100_000,
)


@pytest.mark.parametrize("content", BROKEN_FILES)
def test_a_file_that_cannot_be_used_is_no_error(content: str, state: Path) -> None:
    state.parent.mkdir(parents=True)
    state.write_text(content, encoding="latin-1")
    assert LastDraftNodes("").recall() is None
    LastDraftNodes("").remember(HERE)
    assert LastDraftNodes("").recall() == HERE


def test_a_place_that_cannot_be_written_is_no_error(state: Path) -> None:
    state.mkdir(parents=True)
    LastDraftNodes("").remember(HERE)
    assert LastDraftNodes("").recall() is None


def test_only_the_latest_networks_are_remembered(state: Path) -> None:
    for number in range(40):
        LastDraftNodes(f"{number:016x}").remember(KITCHEN)
    assert LastDraftNodes(f"{39:016x}").recall() == KITCHEN
    assert LastDraftNodes(f"{0:016x}").recall() is None
    assert len(json.loads(state.read_text())) == 32
