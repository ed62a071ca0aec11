"""`flowedge models` on a cache of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flowedge.cli.main import run
from flowedge.device.disk_cache.limits import CacheLimits
from flowedge.device.disk_cache.objects import ObjectStore
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.model_source import BUNDLED_PATH
from flowedge.weights.checkpoint_opener import open_cached
from flowedge.weights.known_models import KnownModels
from tests.support.processes import agents


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLOWEDGE_CACHE_DIR", str(tmp_path))
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    capsys.readouterr()
    assert run(["models", "--local", "--json"]) == 0
    out = capsys.readouterr().out
    return json.loads(out) if out else []  # type: ignore[no-any-return]


def test_a_model_is_pulled_listed_checked_and_dropped(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["models", "pull", "bundled"]) == 0
    name = capsys.readouterr().out.strip()
    [model] = listed(capsys)
    assert name == f"sha256:{model['id']}" and model["device"] == "this device"
    assert model["here_bytes"] == model["total_bytes"]

    store = ObjectStore(CacheLimits(cache, 1 << 40))
    manifest = KnownModels(store).manifest(str(model["id"]))
    assert manifest is not None
    cached = open_cached(store, manifest, cache / "models" / manifest.id)
    bundled = Checkpoint.open("bundled")
    assert cached.names == bundled.names and cached.fingerprint == bundled.fingerprint
    ours, theirs = (LayerBlock.load(checkpoint, 1, 2).layers[0] for checkpoint in (cached, bundled))
    assert all((a == b).all() for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))

    assert run(["models", "verify", name[:15]]) == 0
    damaged = store.path(manifest.tensors[0].sha256)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    capsys.readouterr()
    assert run(["models", "verify"]) == 1
    assert "1 of " in capsys.readouterr().err and not damaged.exists()
    [model] = listed(capsys)
    assert int(str(model["total_bytes"])) - int(str(model["here_bytes"])) == manifest.tensors[0].bytes
    assert run(["models", "pull", "bundled"]) == 0 and damaged.exists()

    assert run(["models", "list", "--local"]) == 0
    assert "bundled" in capsys.readouterr().out
    assert run(["models", "verify", "bundled"]) == 0
    assert run(["models", "rm", "bundled"]) == 0
    assert listed(capsys) == [] and not list(store)


def test_of_several_models_of_a_name_the_hash_tells_which(
    cache: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for number in (1, 2):
        model = tmp_path / str(number) / "mine"
        shutil.copytree(BUNDLED_PATH / "model", model)
        (model / "chat_template.jinja").write_text(f"{{{{ messages[0].content }}}} {number}")
        assert run(["models", "pull", str(model)]) == 0
    hashes = {f"sha256:{str(model['id'])[:12]}" for model in listed(capsys)}
    assert run(["models", "rm", "mine"]) == 2
    error = capsys.readouterr().err
    assert "2 cached models are called mine: give one of" in error and all(each in error for each in hashes)
    for each in hashes:
        assert run(["models", "rm", each]) == 0
    assert listed(capsys) == []


def test_models_of_agents_are_on_devices_with_names(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(["models", "pull", "bundled"]) == 0
    capsys.readouterr()
    with agents(["kitchen"]) as (kitchen,):  # with this cache
        monkeypatch.setenv("FLOWEDGE_CACHE_DIR", str(tmp_path / "empty"))
        assert run(["models", "list", "--peers", kitchen.address, "--json"]) == 0
    assert [model["device"] for model in json.loads(capsys.readouterr().out)] == ["kitchen"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["rm", "sha256:12345678"], "no cached model is called sha256:12345678; the cache has no model"),
        (["verify", "g.gguf"], "no cached model is called g.gguf"),
        (["pull", "sha256:12345678", "--from", "127.0.0.1:1"], "matches 0 of the models that 1 agents have"),
        (["pull", "/nowhere"], "no such directory"),
        (["pull", "owner/name"], "downloads from the hub are not allowed"),
    ],
)
def test_what_is_wrong_is_one_line(
    cache: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert run(["models", *arguments]) != 0
    error = capsys.readouterr().err
    assert complaint in error and error.startswith("flowedge: ") and error.count("\n") == 1
