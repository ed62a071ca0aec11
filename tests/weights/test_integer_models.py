"""A block of a model that GPTQ or compressed-tensors stored, fetched from another device as it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.weights.manifest_of_model import describe
from tests.support.integer_checkpoints import LAYOUTS, write_integer_checkpoint
from tests.weights.big_checkpoint import write_checkpoint
from tests.weights.servers import local_weights_at, serving
from tests.weights.test_model_opener import (
    START,
    STOP,
    assert_same_block,
    open_block,
    sources_of,
)


@pytest.mark.parametrize("layout", ["gptq-desc_act", "awq", "w4a16-asymmetric", "w8a16-int"])
def test_the_stored_integers_are_fetched(tmp_path: Path, layout: str) -> None:
    write_checkpoint(tmp_path / "plain", 0, width=128)
    directory = tmp_path / "stored"
    write_integer_checkpoint(tmp_path / "plain", directory, LAYOUTS[layout])
    giver, taker = local_weights_at(tmp_path / "giver"), local_weights_at(tmp_path / "taker")
    described = describe(Checkpoint(directory), giver.store.limits.root)
    giver.share("model", described.manifest, described.ranges)
    expected = LayerBlock.load(Checkpoint(directory), START, STOP)

    async def run() -> None:
        async with serving(giver) as (address, _):
            sources = sources_of(described.manifest.id, address)
            opened, _ = await open_block(taker, sources, "/nowhere", directory)
            assert opened.checkpoint.directory != directory
            assert LayerBlock.required_bytes(opened.checkpoint, START, STOP) == expected.weight_bytes
            assert_same_block(opened, directory)
            sent = sum(entry.bytes for entry in described.manifest.tensors)
            assert 0 < taker.traffic.received < 0.9 * sent, "tensors of other layers were fetched"
            opened.release()

    asyncio.run(run())
