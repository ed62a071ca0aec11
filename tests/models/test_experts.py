"""Experts as linear layers against transformers' stacked ones, stored in every form, and quantised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.check.split_experts import SplitExperts, split_experts
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.quant.quant_cache import QuantCache
from tests.models.pipeline import Pipeline
from tests.models.tiny_families import VOCAB, make_tiny

EXPERTS, WIDTH = 6, 32
TEXT = torch.randint(3, VOCAB, (40,), generator=torch.Generator().manual_seed(2)).tolist()


@pytest.fixture
def stacked() -> Any:
    torch.manual_seed(0)
    config = MixtralConfig(hidden_size=WIDTH, intermediate_size=48, num_local_experts=EXPERTS)
    config._experts_implementation = "eager"  # noqa: SLF001 (there is no public way)
    experts = MixtralExperts(config)
    for parameter in experts.parameters():
        nn.init.normal_(parameter, std=0.3)
    return experts


def routed(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    chosen = torch.stack([torch.randperm(EXPERTS, generator=generator)[:2] for _ in range(rows)])
    weights = torch.rand(rows, 2, generator=generator)
    return torch.randn(rows, WIDTH, generator=generator), chosen, weights


def test_they_equal_transformers_experts_and_copy_nothing(stacked: Any) -> None:
    layer = nn.Sequential(stacked)
    inputs = routed(23)
    with torch.inference_mode():
        expected = stacked(*inputs)
        split = split_experts(layer)[0]  # type: ignore[index]
        assert isinstance(split, SplitExperts)
        torch.testing.assert_close(split(*inputs), expected, atol=1e-5, rtol=1e-5)
    gate = split.get_submodule("0").gate_proj.weight  # type: ignore[union-attr]
    assert gate.data_ptr() == stacked.gate_up_proj.data_ptr()


def test_no_row_depends_on_another(stacked: Any) -> None:
    experts = SplitExperts(stacked)
    hidden, chosen, weights = routed(16)
    hidden[3] *= 1e4
    with torch.inference_mode():
        together = experts(hidden, chosen, weights)
        rows = [experts(hidden[i : i + 1], chosen[i : i + 1], weights[i : i + 1]) for i in range(16)]
        assert torch.equal(experts(hidden, chosen, weights), together)
    others = [row for row in range(16) if row != 3]
    torch.testing.assert_close(together[others], torch.cat(rows)[others], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_stacked_and_separate_tensors_are_the_same_model(tmp_path: Path, name: str) -> None:
    separate = Checkpoint.open(str(make_tiny(tmp_path / "separate", name)))
    stacked = Checkpoint.open(str(make_tiny(tmp_path / "stacked", name, save_original_format=False)))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "config.json").write_bytes((stacked.directory / "config.json").read_bytes())
    from safetensors.torch import load_file

    torch.save(load_file(stacked.directory / "model.safetensors"), tmp_path / "bin" / "pytorch_model.bin")
    with pytest.warns(UserWarning, match="weights_only"):
        pickled = Checkpoint.open(str(tmp_path / "bin"))
    assert "model.layers.2.mlp.experts.5.up_proj.weight" in separate.names
    assert separate.names == stacked.names == pickled.names
    for tensor in separate.names:
        for other in (stacked, pickled):
            assert torch.equal(separate.tensor(tensor), other.tensor(tensor))
            assert separate.shape(tensor) == other.shape(tensor)
    assert separate.tensor_bytes(separate.names) == stacked.tensor_bytes(stacked.names)


def test_of_a_stack_one_expert_is_read_and_rows_of_it(tmp_path: Path, read_sizes: list[int]) -> None:
    checkpoint = Checkpoint.open(str(make_tiny(tmp_path, "mixtral", save_original_format=False)))
    for projection in ("gate_proj", "up_proj", "down_proj"):
        name = f"model.layers.1.mlp.experts.4.{projection}.weight"
        whole = checkpoint.tensor(name)
        assert read_sizes.pop() == whole.nbytes == checkpoint.tensor_bytes([name])
        assert torch.equal(checkpoint.rows(name, 3, 9), whole[3:9])
        assert read_sizes.pop() == whole[3:9].nbytes and not read_sizes


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_cached_experts_are_told_apart_and_found_in_either_form(tmp_path: Path, name: str) -> None:
    cache = QuantCache(tmp_path / "cache", 1 << 30)
    stacked = Checkpoint.open(str(make_tiny(tmp_path / "stacked", name, save_original_format=False)))
    separate = Checkpoint.open(str(make_tiny(tmp_path / "separate", name)))
    expected = LayerBlock.load(stacked, 2, 3, quant="nf4").layers[0].state_dict()
    kept = None
    for checkpoint in (stacked, stacked, separate):
        block = LayerBlock.load(checkpoint, 2, 3, quant="nf4", quant_cache=cache)
        got = block.layers[0].state_dict()
        assert got.keys() == expected.keys() and all(torch.equal(got[key], expected[key]) for key in got)
        files = sorted(path.name for path in cache.directory.glob("*.safetensors"))
        kept = kept or files
        assert files == kept and len(files) == 4 + 3 * EXPERTS


@pytest.mark.parametrize("quant", ["nf4", "llm-int8"])
def test_quantised_blocks_equal_the_quantised_whole_model(tmp_path: Path, quant: str) -> None:
    checkpoint = Checkpoint.open(str(make_tiny(tmp_path, "qwen3_moe")))
    pipeline = Pipeline(checkpoint, 2, quant=quant)
    exact, model = ReferenceModel.load(checkpoint).model, ReferenceModel.load(checkpoint, quant).model
    with torch.inference_mode():
        expected = model(torch.tensor([TEXT])).logits[0]
        assert (expected - exact(torch.tensor([TEXT])).logits[0]).abs().max() > 0.01
    got = pipeline.commit(TEXT)
    torch.testing.assert_close(got, expected, atol=1e-4 if quant == "nf4" else 0.3, rtol=1e-3)
    expert = pipeline.blocks[0].layers[0].get_submodule("mlp.experts.3.up_proj")
    assert type(expert).__name__ == ("Linear4bit" if quant == "nf4" else "Linear8bitLt")
