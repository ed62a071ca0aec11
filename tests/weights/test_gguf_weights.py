"""A stage fetches its tensors of a GGUF model in the form in which the file stores them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from flowedge.agent.holding.stage_content import block_tensors, head_tensors
from flowedge.core.errors import CheckpointError
from flowedge.device.disk_cache.space import QUANTISED
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.models.lm_head import LMHead
from flowedge.models.quant.block_repacking import repack_blocks
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.fetch.source import SourceAddress
from flowedge.weights.importing import import_model, quantise_model
from flowedge.weights.manifest import Manifest, parse_manifest
from flowedge.weights.manifest_of_model import describe
from flowedge.weights.model_opener import ModelOpener
from flowedge.weights.model_request import ModelRequest, OpenedModel
from flowedge.weights.quantised_weights import QuantisedRequest, list_quantised, quantised_keys
from tests.support.gguf_files import BUNDLED, write_gguf
from tests.weights.servers import QUICK, local_weights_at, serving
from tests.weights.test_model_opener import run_here

START, STOP = 2, 5


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", BUNDLED, "Q4_K")


def test_a_manifest_names_the_stored_types(path: Path, tmp_path: Path) -> None:
    manifest = describe(Checkpoint.open(str(path)), tmp_path).manifest
    assert manifest == parse_manifest(manifest.content, manifest.id)
    assert {entry.dtype for entry in manifest.tensors} == {"F32", "Q4_K"}
    query = manifest.tensors_by_name["blk.3.attn_q.weight"]
    assert (query.shape, query.bytes) == ((256, 256), 256 * 144)
    names = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert names <= manifest.files_by_name.keys()
    assert describe(Checkpoint.open(str(path)), tmp_path).manifest.id == manifest.id


def request_of(manifest: Manifest, checkpoint: Checkpoint, address: str, quantised: str = "") -> ModelRequest:
    sources = pb.WeightSources(manifest=manifest.id, name="model", draft_node=address, quantised=quantised)
    return ModelRequest.from_proto(
        sources,
        "/nowhere.gguf",
        checkpoint.fingerprint,
        lambda opened: block_tensors(opened, START, STOP),
        lambda: QuantisedRequest("int4", torch.float32, START, STOP),
    )


async def tell(_text: str, _transfer: pb.Transfer | None = None) -> None:
    pass


@pytest.mark.parametrize("quant", ["none", "int4"])
def test_a_block_over_the_network(path: Path, tmp_path: Path, quant: str) -> None:
    giver, taker = local_weights_at(tmp_path / "giver"), local_weights_at(tmp_path / "taker")
    checkpoint = Checkpoint.open(str(path))
    described = describe(checkpoint, giver.store.limits.root)
    giver.share("model", described.manifest, described.ranges)
    wanted = set(block_tensors(checkpoint, START, STOP))
    size = sum(entry.bytes for entry in described.manifest.tensors if entry.name in wanted)

    async def run() -> OpenedModel:
        async with serving(giver) as (address, _):
            opener = ModelOpener("taker", taker, QUICK, run_here, tell)
            return await opener.open(request_of(described.manifest, checkpoint, address))

    opened = asyncio.run(run())
    config = described.manifest.files_by_name["config.json"]
    assert taker.traffic.received == size + config.bytes
    ours, theirs = (
        LayerBlock.load(each, START, STOP, quant=quant) for each in (opened.checkpoint, checkpoint)
    )
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert opened.checkpoint.fingerprint == checkpoint.fingerprint
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.self_attn\.q_proj\.weight cannot be read"):
        opened.checkpoint.tensor("model.layers.0.self_attn.q_proj.weight")


def test_a_draft_node_fetches_the_tokenizer_too(path: Path, tmp_path: Path) -> None:
    giver, taker = local_weights_at(tmp_path / "giver"), local_weights_at(tmp_path / "taker")
    model = import_model(giver, str(path), hub=False, on_transfer=lambda *_: None)

    async def run() -> OpenedModel:
        async with serving(giver) as (address, _):
            opener = ModelOpener("taker", taker, QUICK, run_here, tell)
            sources = (SourceAddress(address),)
            return await opener.open(
                ModelRequest(f"sha256:{model}", "m", model, "", sources, head_tensors, with_tokenizer=True)
            )

    opened = asyncio.run(run())
    original = Checkpoint.open(str(path))
    ids = load_tokenizer(original).encode("12 hens <|user|>")
    assert load_tokenizer(opened.checkpoint).encode("12 hens <|user|>") == ids
    assert torch.equal(LMHead.load(opened.checkpoint).weight, LMHead.load(original).weight)


def test_weights_to_encode_come_quantised_and_weights_to_repack_do_not(tmp_path: Path) -> None:
    giver = local_weights_at(tmp_path / "giver")
    keys = {}
    for kind in ("Q4_0", "Q6_K"):
        path = write_gguf(tmp_path / f"{kind}.gguf", BUNDLED, kind)
        model = import_model(giver, str(path), hub=False, on_transfer=lambda *_: None)
        quantise_model(giver, model, "int4", lambda *_: None)
        manifest = giver.known_models.manifest(model)
        assert manifest is not None
        request = QuantisedRequest("int4", torch.float32, START, STOP)
        keys[kind] = quantised_keys(Checkpoint.open(str(path)), manifest, request)
    assert not keys["Q4_0"] and len(keys["Q6_K"]) == (STOP - START) * 7
    cache = QuantCache(giver.store.limits.root / QUANTISED, 1 << 30)
    assert len(list_quantised(keys["Q6_K"].values(), cache)[0].entries) == len(keys["Q6_K"])
    assert repack_blocks(
        Checkpoint.open(str(tmp_path / "Q4_0.gguf")), "model.layers.2.mlp.up_proj.weight", "int4"
    )
