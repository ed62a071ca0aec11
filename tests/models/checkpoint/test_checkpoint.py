"""Opening checkpoints, reading only the tensors that are asked for, and naming the defect of bad files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flowedge.core.errors import CheckpointError
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.files.weight_file import WeightSlice
from flowedge.models.lm_head import LMHead, load_embedding
from tests.models.conftest import Make, edit_config, edit_tensors


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tensors that are read."""
    names: list[str] = []

    def spy(method: str) -> None:
        real = getattr(WeightSlice, method)

        def noting(stored: WeightSlice, *arguments: Any) -> Any:
            names.append(stored.name)
            return real(stored, *arguments)

        monkeypatch.setattr(WeightSlice, method, noting)

    spy("__getitem__")
    spy("read_into")
    return names


@pytest.mark.parametrize("shard", ["1GB", "60KB"])
@pytest.mark.parametrize(
    ("layers", "extra"),
    [
        (range(1), ["model.embed_tokens.weight"]),
        (range(1, 3), []),
        (range(3, 4), ["model.norm.weight"]),
    ],
)
def test_a_block_reads_its_own_tensors_only(
    make_checkpoint: Make, read: list[str], shard: str, layers: range, extra: list[str]
) -> None:
    checkpoint = Checkpoint.open(str(make_checkpoint(max_shard_size=shard)))
    LayerBlock.load(checkpoint, layers.start, layers.stop)
    own = [name for name in checkpoint.names if any(f"layers.{i}." in name for i in layers)]
    assert len(own) == 9 * len(layers)
    assert sorted(read) == sorted(own + extra)


def test_the_head_reads_one_tensor(directory: Path, read: list[str]) -> None:
    checkpoint = Checkpoint.open(str(directory))
    assert read == []
    LMHead.load(checkpoint)
    assert read == ["lm_head.weight"]


def test_tensors_and_bytes(directory: Path) -> None:
    checkpoint = Checkpoint.open(str(directory))
    stored = load_file(directory / "model.safetensors")
    assert checkpoint.names == sorted(stored)
    for name, tensor in stored.items():
        assert checkpoint.has(name) and checkpoint.shape(name) == tuple(tensor.shape)
        assert torch.equal(checkpoint.tensor(name), tensor)
    assert not checkpoint.has("model.layers.9.mlp.up_proj.weight")
    assert checkpoint.tensor_bytes(stored) == sum(tensor.nbytes for tensor in stored.values())
    assert checkpoint.directory == directory
    assert checkpoint.config.num_hidden_layers == 4


def test_bin_weights_load_with_a_warning(directory: Path, tmp_path: Path) -> None:
    shutil.copy(directory / "config.json", tmp_path)
    stored = load_file(directory / "model.safetensors")
    torch.save(stored, tmp_path / "pytorch_model.bin")
    with pytest.warns(UserWarning, match="weights_only"):
        checkpoint = Checkpoint.open(str(tmp_path))
    assert all(torch.equal(checkpoint.tensor(name), tensor) for name, tensor in stored.items())
    assert checkpoint.tensor_bytes(stored) == sum(tensor.nbytes for tensor in stored.values())


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("flowedge-was-here",)


@pytest.mark.filterwarnings("ignore:.*weights_only")
def test_bin_weights_run_no_code(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(directory / "config.json", tmp_path)
    torch.save({"model.norm.weight": Payload()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="more than tensors"):
        Checkpoint.open(str(tmp_path))
    assert not Path("flowedge-was-here").exists()


def test_the_fingerprint_tells_models_apart(directory: Path, copy: Path, make_checkpoint: Make) -> None:
    fingerprint = Checkpoint.open(str(directory)).fingerprint
    assert Checkpoint.open(str(copy)).fingerprint == fingerprint
    assert Checkpoint.open(str(make_checkpoint(seed=1))).fingerprint != fingerprint
    edit_config(copy, rms_norm_eps=1e-5)
    assert Checkpoint.open(str(copy)).fingerprint != fingerprint


def test_a_wrong_shape_names_the_tensor_and_both_shapes(copy: Path) -> None:
    edit_tensors(copy, {"model.layers.1.mlp.up_proj.weight": torch.zeros(7, 64)})
    checkpoint = Checkpoint.open(str(copy))
    LayerBlock.load(checkpoint, 0, 1)
    message = r"model\.layers\.1\.mlp\.up_proj\.weight has shape \[7, 64\], the config asks for \[128, 64\]"
    with pytest.raises(CheckpointError, match=message):
        LayerBlock.load(checkpoint, 1, 2)


def test_a_missing_tensor_is_named(copy: Path) -> None:
    edit_tensors(copy, {"model.norm.weight": None, "lm_head.weight": None})
    checkpoint = Checkpoint.open(str(copy))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is missing"):
        LayerBlock.load(checkpoint, 3, 4)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing and the config does not tie it"):
        LMHead.load(checkpoint)


def test_a_tensor_of_integers_is_refused(copy: Path) -> None:
    edit_tensors(copy, {"model.norm.weight": torch.zeros(64, dtype=torch.int8)})
    with pytest.raises(CheckpointError, match="not a float"):
        LayerBlock.load(Checkpoint.open(str(copy)), 3, 4)


def test_broken_files_are_refused(copy: Path) -> None:
    weights = copy / "model.safetensors"
    whole = weights.read_bytes()
    for broken in (whole[:-100], b"", b"\xff" * 100):
        weights.write_bytes(broken)
        with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read"):
            Checkpoint.open(str(copy))
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        Checkpoint.open(str(copy))
    (copy / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        Checkpoint.open(str(copy))
    (copy / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read"):
        Checkpoint.open(str(copy))


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "absent.safetensors"])
def test_an_index_names_files_of_its_directory_only(copy: Path, name: str) -> None:
    shutil.copy(copy / "model.safetensors", copy.parent)
    index = {"metadata": {}, "weight_map": {"model.norm.weight": name}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"the index names shard .* which is not there"):
        Checkpoint.open(str(copy))


def test_sources_that_are_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="no such directory or GGUF file, and not a hub id"):
        Checkpoint.open("/no/such/place")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"flowedge/no-such-model: .* model directory"):
        Checkpoint.open("flowedge/no-such-model")


def test_a_tied_head_shares_the_embedding(make_checkpoint: Make, directory: Path) -> None:
    tied = Checkpoint.open(str(make_checkpoint(tie_word_embeddings=True)))
    assert not tied.has("lm_head.weight")
    head = LMHead.load(tied)
    embedding = load_embedding(tied)
    assert embedding.weight.data_ptr() == head.weight.data_ptr()
    assert head.vocab_size == 97 and head.weight_bytes == 97 * 64 * 4
    untied = Checkpoint.open(str(directory))
    apart = load_embedding(untied)
    assert torch.equal(apart.weight, untied.tensor("model.embed_tokens.weight"))


def test_logits_are_float32(directory: Path) -> None:
    checkpoint = Checkpoint.open(str(directory))
    hidden = torch.randn(3, 64)
    exact = LMHead.load(checkpoint).logits(hidden)
    assert exact.shape == (3, 97) and exact.dtype == torch.float32
    torch.testing.assert_close(exact, hidden @ checkpoint.tensor("lm_head.weight").T)
    half = LMHead.load(checkpoint, torch.bfloat16).logits(hidden)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, exact, atol=0.2, rtol=0.05)
