"""Blocks of GGUF become weights of int4 and w8a16 without a second quantisation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.loading import layer_bytes
from flowedge.models.quant.backend import Tensors, WeightRows
from flowedge.models.quant.block_repacking import can_repack, repack_blocks
from flowedge.models.quant.int4 import Int4
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.token_table import table_bytes
from tests.models.tiny_families import TINY, make_tiny
from tests.support.gguf_files import write_gguf

Written = Callable[[str], Checkpoint]
ROUNDED = 2**-8  # of a scale or zero, relative: bfloat16 has 8 bits


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """written(kind): a model of random weights with rows of 256, whose matrices are stored as `kind`."""
    directory = tmp_path_factory.mktemp("gguf")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "mlp_bias": False}
    TINY["wide"] = ("llama", sizes)
    model = make_tiny(directory / "hf", "wide")
    del TINY["wide"]
    made: dict[str, Path] = {}

    def get(kind: str) -> Checkpoint:
        if kind not in made:
            made[kind] = write_gguf(directory / f"{kind}.gguf", model, kind, tokenizer=None)
        return Checkpoint.open(str(made[kind]))

    return get


def int4_weights(tensors: Tensors) -> torch.Tensor:
    """The weights of int4's form in float32."""
    levels = torch.stack((tensors["weight"] >> 4, tensors["weight"] & 15), dim=2).flatten(1).float()
    groups = (levels - 8).view(len(levels), tensors["scale"].shape[1], -1)
    return (groups * tensors["scale"].float()[..., None] + tensors["zero"].float()[..., None]).flatten(1)


NAMES = [
    f"model.layers.1.{part}.weight" for part in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
@pytest.mark.parametrize("name", NAMES)
def test_int4_keeps_the_integers(written: Written, kind: str, name: str) -> None:
    checkpoint = written(kind)
    expected, tensors = checkpoint.tensor(name), repack_blocks(checkpoint, name, "int4")
    assert tensors is not None
    found = int4_weights(tensors)[: len(expected)]
    size = expected.abs().max()
    assert (found - expected).abs().max() < 2 * ROUNDED * size
    again = int4_weights(Int4().encode(WeightRows.of(expected)))[: len(expected)]
    assert (found - expected).pow(2).mean() < 0.01 * (again - expected).pow(2).mean()
    if kind == "Q4_0":
        exact = tensors | {"scale": scales_of(checkpoint, name)}
        assert torch.equal(int4_weights(exact)[: len(expected)], expected)
        assert torch.equal(exact["scale"].bfloat16(), tensors["scale"]) and not tensors["zero"].any()


def scales_of(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    blocks = checkpoint.block_rows(name, 0, checkpoint.shape(name)[0])
    return blocks.view(len(blocks), -1, 18)[:, :, :2].contiguous().view(torch.float16)[:, :, 0].float()


@pytest.mark.parametrize("name", NAMES)
def test_q8_0_is_w8a16_as_it_is(written: Written, name: str) -> None:
    checkpoint = written("Q8_0")
    tensors = repack_blocks(checkpoint, name, "w8a16")
    assert tensors is not None and tensors["scale"].dtype == torch.float16
    weights = (
        tensors["weight"].float().view(len(tensors["weight"]), -1, 32) * tensors["scale"].float()[..., None]
    )
    assert torch.equal(weights.flatten(1), checkpoint.tensor(name))


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q5_K", "Q6_K"])
def test_other_types_are_encoded(written: Written, kind: str) -> None:
    checkpoint = written(kind)
    assert not can_repack(checkpoint, NAMES[0], "int4")
    assert repack_blocks(checkpoint, NAMES[0], "int4") is None
    assert not can_repack(checkpoint, NAMES[0], "nf4")


def test_stacked_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_type, changes = TINY["mixtral"]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    monkeypatch.setitem(TINY, "mixtral", (model_type, changes | sizes))
    path = write_gguf(tmp_path / "x.gguf", make_tiny(tmp_path / "hf", "mixtral"), "Q4_0", tokenizer=None)
    checkpoint = Checkpoint.open(str(path))
    for part in ("gate_proj", "up_proj", "down_proj"):
        name = f"model.layers.0.mlp.experts.5.{part}.weight"
        tensors, expected = repack_blocks(checkpoint, name, "int4"), checkpoint.tensor(name)
        assert tensors is not None
        assert torch.allclose(int4_weights(tensors)[: len(expected)], expected, atol=2 * ROUNDED)


@pytest.mark.parametrize(
    ("kind", "quant"), [("Q4_0", "int4"), ("Q4_K", "int4"), ("Q8_0", "w8a16"), ("Q6_K", "int4")]
)
def test_a_block_of_layers(tmp_path: Path, written: Written, kind: str, quant: str) -> None:
    """Sums of memory are those of the loaded layers; only what was encoded is in the cache."""
    checkpoint, cache = written(kind), QuantCache(tmp_path / "quantised", 1 << 30)
    block = LayerBlock.load(checkpoint, 0, 2, quant=quant, quant_cache=cache)
    table = table_bytes(checkpoint, checkpoint.embedding_name, torch.float32, "cpu", quant)
    norm_and_embedding = table + 256 * 4
    sums = sum(layer_bytes(checkpoint, index, [quant], torch.float32)[quant] for index in range(2))
    assert block.weight_bytes - norm_and_embedding == sums
    cached = len(list((tmp_path / "quantised").glob("*.safetensors")))
    assert cached == (0 if can_repack(checkpoint, NAMES[0], quant) else 14)
    again = LayerBlock.load(checkpoint, 0, 2, quant=quant, quant_cache=cache)
    rows = torch.randn(3, 256)
    for one, other in zip(block.layers, again.layers, strict=True):
        ours, theirs = (layer.get_submodule("mlp") for layer in (one, other))
        with torch.inference_mode():
            assert torch.equal(ours(rows), theirs(rows))
