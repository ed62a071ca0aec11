"""Loading takes hardly more memory than the block that is loaded, however large the checkpoint is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from tests.support.breadth import dealt
from tests.support.fork_pool import fork_server

LAYERS = 4
ALLOWANCE = 200 * 2**20  # bytes beside the block

CONFIG = LlamaConfig(
    vocab_size=128,
    hidden_size=4096,
    intermediate_size=16384,
    num_hidden_layers=LAYERS,
    num_attention_heads=32,
    num_key_value_heads=32,
    max_position_embeddings=512,
)


def resident(field: str) -> int:
    """Return a size in /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def load(directory: Path, quant: str, dtype: torch.dtype) -> tuple[int, int, int]:
    """Load a block; return the process's memory before, its peak, and the bytes of the block."""
    torch.set_num_threads(1)
    checkpoint = Checkpoint.open(str(directory))
    before = resident("VmRSS")
    block = LayerBlock.load(checkpoint, 1, 2, quant=quant, dtype=dtype)
    return before, resident("VmHWM"), block.weight_bytes


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """2 GB in bfloat16, one shard a layer; the weights are holes of sparse files, which read as zeros."""
    directory = tmp_path_factory.mktemp("large")
    CONFIG.save_pretrained(directory)
    with torch.device("meta"):
        model = LlamaForCausalLM(CONFIG)
    shards: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, parameter in model.named_parameters():
        layer = name.split(".")[2] if ".layers." in name else "0"
        shards.setdefault(f"model-{layer}.safetensors", {})[name] = tuple(parameter.shape)
    for file, shapes in shards.items():
        write_sparse(directory / file, {name: ("BF16", shape) for name, shape in shapes.items()})
    weight_map = {name: file for file, shapes in shards.items() for name in shapes}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    yield directory
    for path in directory.iterdir():
        path.unlink()


def write_sparse(path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """Write tensors of zeros, given by their types and shapes."""
    header, offset = {}, 0
    for name, (kind, shape) in tensors.items():
        end = offset + (4 if kind == "I32" else 2) * math.prod(shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(8 + len(encoded) + offset)


@pytest.mark.parametrize(
    ("quant", "dtype"), dealt([("none", "float16"), ("nf4", "float32")], lambda _case: False)
)
def test_a_quarter_of_a_checkpoint_of_2_gb(large: Path, quant: str, dtype: str) -> None:
    assert sum(file.stat().st_size for file in large.iterdir()) > 2 * 10**9
    with fork_server().Pool(1) as pool:  # a process of its own has a peak of its own
        before, peak, block = pool.apply(load, (large, quant, getattr(torch, dtype)))
    assert block > 100 * 2**20
    assert peak - before <= block + ALLOWANCE


@pytest.fixture(scope="module")
def large_gptq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four bits a weight in GPTQ's layout, of zeros as well."""
    directory = tmp_path_factory.mktemp("gptq")
    CONFIG.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    with torch.device("meta"):
        model = LlamaForCausalLM(CONFIG)
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, parameter in model.named_parameters():
        if ".layers." not in name or parameter.ndim == 1:
            tensors[name] = ("BF16", tuple(parameter.shape))
            continue
        layer, (out_features, in_features) = name.removesuffix("weight"), parameter.shape
        tensors[f"{layer}qweight"] = ("I32", (in_features // 8, out_features))
        tensors[f"{layer}qzeros"] = ("I32", (in_features // 128, out_features // 8))
        tensors[f"{layer}scales"] = ("F16", (in_features // 128, out_features))
    write_sparse(directory / "model.safetensors", tensors)
    return directory


@pytest.mark.proof
def test_weights_that_are_stored_as_integers(large_gptq: Path) -> None:
    with fork_server().Pool(1) as pool:
        before, peak, block = pool.apply(load, (large_gptq, "none", torch.bfloat16))
    assert block > 100 * 2**20
    assert peak - before <= block + ALLOWANCE
