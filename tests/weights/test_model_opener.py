"""A block is opened from the first of its sources that has it, and is the same from each."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flowedge.agent.holding.stage_content import block_tensors
from flowedge.core.errors import CapacityError, DeviceLostError, FlowEdgeError
from flowedge.device.disk_cache.space import QUANTISED
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.quant.int4 import Int4
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.importing import import_model, quantise_model
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.manifest_of_model import describe
from flowedge.weights.model_opener import ModelOpener
from flowedge.weights.model_request import ModelRequest, OpenedModel
from flowedge.weights.quantised_weights import QuantisedRequest, list_quantised, quantised_keys
from tests.weights.big_checkpoint import write_checkpoint
from tests.weights.servers import QUICK, local_weights_at, serving

START, STOP = 1, 3
ASKED = QuantisedRequest("int4", torch.float32, START, STOP)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model") / "model"
    write_checkpoint(made, 0, width=128)
    return made


async def run_here(function: Callable[[], Any]) -> Any:
    return function()


async def open_block(
    local: LocalWeights, sources: pb.WeightSources, model: str, directory: Path, **settings: bool
) -> tuple[OpenedModel, list[str]]:
    said: list[str] = []

    async def tell(text: str, transfer: pb.Transfer | None = None) -> None:
        said.append(text)

    def select(checkpoint: Checkpoint) -> list[str]:
        return block_tensors(checkpoint, START, STOP)

    opener = ModelOpener("taker", local, QUICK.model_copy(update=settings), run_here, tell)
    fingerprint = Checkpoint(directory).fingerprint
    request = ModelRequest.from_proto(sources, model, fingerprint, select, lambda: ASKED)
    opened = await opener.open(request)
    return opened, [text for text in said if text]


def assert_same_block(opened: OpenedModel, directory: Path) -> None:
    ours, theirs = (LayerBlock.load(each, START, STOP) for each in (opened.checkpoint, Checkpoint(directory)))
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def rot(path: Path) -> None:
    """Change a byte of a file as a failing disk does: size, inode and times stay the same."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size - 1)
        last = file.read(1)
        file.seek(before.st_size - 1)
        file.write(bytes([last[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_rot_of_a_cached_config_is_found_before_it_is_read(tmp_path: Path, directory: Path) -> None:
    giver, taker = local_weights_at(tmp_path / "giver"), local_weights_at(tmp_path / "taker")
    described = describe(Checkpoint(directory), giver.store.limits.root)
    giver.share("model", described.manifest, described.ranges)

    async def run() -> None:
        async with serving(giver) as (address, _):
            sources = sources_of(described.manifest.id, address)
            (await open_block(taker, sources, "/nowhere", directory))[0].release()
            before, config = taker.traffic.received, described.manifest.files_by_name["config.json"]
            rot(taker.store.path(config.sha256))
            opened, said = await open_block(taker, sources, "/nowhere", directory)
            assert config.sha256 in said[0] and taker.traffic.received == before + config.bytes
            assert_same_block(opened, directory)
            opened.release()

    asyncio.run(run())


def test_damage_without_a_source_ends_in_an_error_that_says_what_to_do(
    tmp_path: Path, directory: Path
) -> None:
    taker = local_weights_at(tmp_path / "taker")
    model = import_model(taker, str(directory), hub=False, on_transfer=lambda *_: None)
    manifest = taker.known_models.manifest(model)
    assert manifest is not None
    wanted = block_tensors(Checkpoint(directory), START, STOP)[0]
    rot(taker.store.path(manifest.tensors_by_name[wanted].sha256))
    with pytest.raises(
        DeviceLostError, match=r"1 of \d+ objects are missing.*1 objects .* `flowedge models pull`"
    ):
        asyncio.run(open_block(taker, sources_of(model, "127.0.0.1:1"), "/nowhere", directory))


def sources_of(model: str, address: str, quantised: str = "") -> pb.WeightSources:
    return pb.WeightSources(manifest=model, name="model", draft_node=address, quantised=quantised)


def test_devices_then_the_cache_which_is_mended(tmp_path: Path, directory: Path) -> None:
    giver, taker = local_weights_at(tmp_path / "giver"), local_weights_at(tmp_path / "taker")
    described = describe(Checkpoint(directory), giver.store.limits.root)
    giver.share("model", described.manifest, described.ranges)
    wanted = set(block_tensors(Checkpoint(directory), START, STOP))
    sizes = {entry.sha256: entry.bytes for entry in described.manifest.tensors if entry.name in wanted}

    async def run() -> None:
        async with serving(giver) as (address, _):
            sources = sources_of(described.manifest.id, address)
            opened, said = await open_block(taker, sources, "/nowhere", directory)
            assert_same_block(opened, directory)
            config = described.manifest.files_by_name["config.json"]
            assert taker.traffic.received == sum(sizes.values()) + config.bytes
            assert said[0].startswith("fetching ") and address in said[0]
            assert said[-1].startswith("fetched ")
            opened.release()

            before = taker.traffic.received
            damaged = taker.store.path(next(iter(sizes)))
            rot(damaged)
            opened, said = await open_block(taker, sources, "/nowhere", directory)
            assert said[0].startswith("damaged objects of model in the cache") and damaged.name in said[0]
            assert taker.traffic.received == before + sizes[damaged.name]
            assert_same_block(opened, directory)
            opened.release()

        again = local_weights_at(tmp_path / "taker")
        opened, said = await open_block(again, sources, "/nowhere", directory)
        assert "from the cache" in said[0] and again.traffic.received == 0
        assert again.store.remove(sizes) == 0, "what is in use was dropped"
        opened.release()
        assert again.store.remove(sizes) == sum(sizes.values())

    asyncio.run(run())


def test_a_directory_is_read_and_given_to_others(tmp_path: Path, directory: Path) -> None:
    giver, taker = local_weights_at(tmp_path / "giver"), local_weights_at(tmp_path / "taker")
    model = import_model(giver, str(directory), hub=False, on_transfer=lambda *_: None)

    async def run() -> None:
        async with serving(giver) as (address, _):
            sources = sources_of(model, address)
            opened, said = await open_block(taker, sources, str(directory), directory)
            assert opened.checkpoint.directory == directory and said == [f"reading model from {directory}"]
            tensor = giver.store.path(model).read_bytes()
            assert taker.traffic.received == 0 and taker.store.read(model) == tensor
            assert all(taker.state_of(digest) == 2 for digest in giver.store if digest != model)
            opened, _ = await open_block(taker, sources, str(directory), directory, directories=False)
            assert opened.checkpoint.directory != directory and taker.traffic.received > 0

    asyncio.run(run())


def test_another_model_in_the_directory_is_not_used(tmp_path: Path, directory: Path) -> None:
    giver, taker = local_weights_at(tmp_path / "giver"), local_weights_at(tmp_path / "taker")
    other = tmp_path / "other"
    model = import_model(giver, str(directory), hub=False, on_transfer=lambda *_: None)
    write_checkpoint(other, 0, width=64)

    async def run() -> None:
        async with serving(giver) as (address, _):
            opened, _ = await open_block(taker, sources_of(model, address), str(other), directory)
            assert_same_block(opened, directory)

    asyncio.run(run())


def test_what_is_quantised_already_comes_instead(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    giver, taker = local_weights_at(tmp_path / "giver"), local_weights_at(tmp_path / "taker")
    model = import_model(giver, str(directory), hub=False, on_transfer=lambda *_: None)
    quantise_model(giver, model, "int4", lambda *_: None)
    expected = LayerBlock.load(Checkpoint(directory), START, STOP, quant="int4")
    manifest = giver.known_models.manifest(model)
    assert manifest is not None
    all_layers = replace(ASKED, start=0, stop=6)
    keys = quantised_keys(Checkpoint(directory), manifest, all_layers)
    cache = QuantCache(giver.store.limits.root / QUANTISED, 1 << 30)
    listed, ranges = list_quantised(keys.values(), cache)
    assert len(listed.entries) == len(keys) == 6 * 7
    giver.give(listed.content, ranges)

    def refuse(*_: object) -> None:
        raise AssertionError("a weight was quantised again")

    async def run() -> None:
        async with serving(giver) as (address, _):
            sources = sources_of(model, address, listed.id)
            opened, _ = await open_block(taker, sources, "/nowhere", directory)
            plain = sum(entry.bytes for entry in manifest.tensors if "layers.1." in entry.name) * 2
            assert len(opened.quantised_paths) == 2 * 7 and taker.traffic.received < 0.5 * plain
        monkeypatch.setattr(Int4, "encode", refuse)
        for again in (opened, (await open_block(taker, sources, "/nowhere", directory))[0]):
            own = QuantCache(taker.store.limits.root / QUANTISED, 1 << 30, again.quantised_paths)
            block = LayerBlock.load(again.checkpoint, START, STOP, quant="int4", quant_cache=own)
            rows = torch.randn(3, 128)
            for ours, theirs in zip(block.layers, expected.layers, strict=True):
                one, other = (layer.get_submodule("mlp") for layer in (ours, theirs))
                with torch.inference_mode():
                    assert torch.equal(one(rows), other(rows))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("max_bytes", "error", "message"),
    [(0, CapacityError, "turned off"), (100_000, CapacityError, "--cache-gib")],
)
def test_no_room(
    tmp_path: Path, directory: Path, max_bytes: int, error: type[FlowEdgeError], message: str
) -> None:
    giver, taker = local_weights_at(tmp_path / "giver"), local_weights_at(tmp_path / "taker", max_bytes)
    model = import_model(giver, str(directory), hub=False, on_transfer=lambda *_: None)

    async def run() -> None:
        async with serving(giver) as (address, _):
            with pytest.raises(error, match=message):
                await open_block(taker, sources_of(model, address), "/nowhere", directory)

    asyncio.run(run())


def test_nobody_has_it(tmp_path: Path, directory: Path) -> None:
    sources = sources_of(os.urandom(32).hex(), "127.0.0.1:1")
    with pytest.raises(DeviceLostError, match="no device gave the manifest"):
        asyncio.run(open_block(local_weights_at(tmp_path), sources, "/nowhere", directory))
