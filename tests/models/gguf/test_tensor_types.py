"""Tensors of every type are what the gguf package makes of them, and so are the model's logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFWriter, dequantize
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from flowedge.core.errors import CheckpointError
from flowedge.device.kernel_library import missing_reason
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.gguf.block_integers import level_format
from flowedge.models.gguf.block_slice import dequantise
from flowedge.models.gguf.block_types import BLOCK_TYPES
from tests.models.gguf.conftest import Bundled
from tests.models.pipeline import Pipeline
from tests.support.breadth import dealt
from tests.support.gguf_files import KINDS, finish, permuted

HEADS = {"attn_q": 8, "attn_k": 4}
# Where the float16 numbers of a block are.
HALVES = {
    "Q4_0": (0,),
    "Q8_0": (0,),
    "Q4_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
EXACT = ("F32", "BF16")  # types that hold the bfloat16 weights of the bundled model as they are


def test_sizes_are_those_of_the_package() -> None:
    sizes = {name: (kind.weights, kind.block_bytes) for name, kind in BLOCK_TYPES.items()}
    assert sizes == {name: GGML_QUANT_SIZES[GGMLQuantizationType[name]] for name in BLOCK_TYPES}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
def test_tensors(bundled_gguf: Bundled, two_layers: Path, kind: str) -> None:
    checkpoint, original = Checkpoint.open(str(bundled_gguf(kind))), Checkpoint(two_layers)
    stored = {tensor.name: tensor for tensor in GGUFReader(bundled_gguf(kind)).tensors}
    assert len(checkpoint.names) == len(stored) == len(original.names)
    for name in checkpoint.names:
        tensor = stored[checkpoint.source(name)[1].name]
        expected = dequantize(tensor.data, tensor.tensor_type)
        ours = checkpoint.tensor(name).float().numpy()
        heads = HEADS.get(tensor.name.split(".")[-2], 0)
        assert np.array_equal(permuted(ours, heads) if heads else ours, expected)
    if kind in EXACT:
        assert all(
            torch.equal(checkpoint.tensor(name).float(), original.tensor(name).float())
            for name in original.names
        )


@pytest.mark.parametrize("kind", ["F16", "Q4_0", "Q6_K"])
def test_some_rows(bundled_gguf: Bundled, kind: str) -> None:
    checkpoint = Checkpoint.open(str(bundled_gguf(kind)))
    for part in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj"):
        name = f"model.layers.1.{part}.weight"
        whole = checkpoint.tensor(name)
        for start, stop in ((0, 1), (5, 70), (31, 33), (32, 64), (100, 128), (127, 128), (9, 9)):
            assert torch.equal(checkpoint.rows(name, start, stop), whole[start:stop]), (part, start, stop)


@pytest.mark.parametrize("kind", dealt(KINDS, {"Q4_0", "Q6_K"}.__contains__))
def test_logits(bundled_gguf: Bundled, kind: str) -> None:
    checkpoint = Checkpoint.open(str(bundled_gguf(kind)))
    tokens = list(range(100, 2500, 100))
    with torch.inference_mode():
        expected = ReferenceModel.load(checkpoint).model(torch.tensor([tokens])).logits[0]
    # Rows that integers are multiplied with are rounded to 8 bits, and may be a step off in the next layer.
    rounds = level_format(kind) is not None and not missing_reason()
    difference = (Pipeline(checkpoint, 2).commit(tokens) - expected).abs()
    assert difference.max() < (0.3 if rounds else 1e-4) and difference.mean() < (0.03 if rounds else 1e-5)


@pytest.mark.parametrize("kind", list(HALVES))
def test_against_another_dequantisation(kind: str) -> None:
    """transformers has one of its own, in torch."""
    others = pytest.importorskip("transformers.integrations.gguf.dequant")
    size, generator = BLOCK_TYPES[kind], np.random.default_rng(3)
    blocks = generator.integers(0, 256, (6, 5 * size.block_bytes), dtype=np.uint8)
    for block in range(5):
        for place in HALVES[kind]:
            scale = generator.uniform(0.001, 0.1, (6, 1)).astype(np.float16).view(np.uint8)
            blocks[:, block * size.block_bytes + place :][:, :2] = scale
    ours = dequantise(torch.from_numpy(blocks), size)
    theirs = others.dequantize(torch.from_numpy(blocks).flatten(), int(GGMLQuantizationType[kind]))
    assert ours.shape == (6, 5 * size.weights)
    assert torch.allclose(ours.flatten(), theirs, rtol=1e-6, atol=1e-6)


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    file = GGUFWriter(tmp_path / "x.gguf", "llama")
    blocks = np.zeros((4, 54), dtype=np.uint8)
    file.add_tensor("token_embd.weight", blocks, raw_dtype=GGMLQuantizationType.TQ1_0)
    finish(file)
    with pytest.raises(CheckpointError, match=r"token_embd\.weight is stored as TQ1_0"):
        Checkpoint.open(str(tmp_path / "x.gguf"))
