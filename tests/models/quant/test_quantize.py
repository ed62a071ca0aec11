"""Quantised blocks against the same quantised whole model, and how far rows depend on each other."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from flowedge.core.errors import BadRequestError
from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.quant import bitsandbytes as bitsandbytes_layers
from flowedge.models.quant.backend import WeightRows
from flowedge.models.quant.bitsandbytes import library
from flowedge.models.quant.quantize import (
    QUANTISATIONS,
    backend_of,
    check_available,
    quantize_linear,
)
from tests.models.conftest import Make
from tests.models.pipeline import Pipeline

TEXT = torch.randint(0, 97, (48,), generator=torch.Generator().manual_seed(2)).tolist()
# 1-row against 16-row forwards: 4-bit multiplies in float32; int8 rounds activations, and a row that
# rounding moves across a step in one layer is a step off in the next, and so does int4, to bfloat16.
ROW_TOLERANCE = {
    "none": 1e-4,
    "nf4": 1e-4,
    "fp4": 1e-4,
    "nf4-dq": 1e-4,
    "int8": 0.3,
    "llm-int8": 0.3,
    "int4": 0.1,
    "w8a16": 0.1,
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("quant", ["nf4", "fp4", "nf4-dq", "llm-int8", "int8", "int4", "w8a16"])
def test_blocks_equal_the_same_quantised_whole_model(directory: Path, quant: str) -> None:
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    exact = model(torch.tensor([TEXT])).logits[0].detach()
    model = ReferenceModel.load(str(directory), quant).model
    with torch.inference_mode():
        expected = model(torch.tensor([TEXT])).logits[0]
    assert (expected - exact).abs().max() > 0.01, "nothing was quantised"
    for blocks in (1, 2):
        got = Pipeline(Checkpoint.open(str(directory)), blocks, quant=quant).commit(TEXT)
        torch.testing.assert_close(got, expected, atol=ROW_TOLERANCE[quant], rtol=1e-3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("quant", ["none", "nf4", "fp4", "nf4-dq", "llm-int8", "int8", "int4", "w8a16"])
def test_rows_hardly_depend_on_each_other(directory: Path, quant: str) -> None:
    checkpoint = Checkpoint.open(str(directory))
    together, alone = (Pipeline(checkpoint, 1, quant=quant) for _ in range(2))
    several = torch.cat([together.commit(TEXT[start : start + 16]) for start in (0, 16)])
    single = torch.cat([alone.commit([token]) for token in TEXT[:32]])
    assert (several - single).abs().max() <= ROW_TOLERANCE[quant]


EXACT = ("int8", "llm-int8", "int4", "w8a16")  # whose rows are the same bit for bit


@pytest.mark.parametrize("quant", ["nf4", "fp4", "nf4-dq", "llm-int8", "int8", "int4", "w8a16"])
def test_rows_of_one_linear_layer_are_independent(quant: str) -> None:
    torch.manual_seed(0)
    layer = quantize_linear(nn.Linear(128, 96), quant)
    rows = torch.randn(1, 16, 128)
    rows[0, 3] *= 50  # an outlier row must not change its neighbours
    with torch.inference_mode():
        together = layer(rows)[0]
        alone = torch.cat([layer(rows[:, i : i + 1])[0] for i in range(16)])
    torch.testing.assert_close(
        together, alone, atol=0.0 if quant in EXACT else 1e-5, rtol=0.0 if quant in EXACT else 1e-5
    )


@pytest.mark.parametrize("quant", ["nf4", "fp4"])
def test_four_bit_layers_multiply_in_float32_even_after_eval(quant: str) -> None:
    torch.manual_seed(0)
    layer = quantize_linear(nn.Linear(128, 96), quant).eval()
    rows = torch.randn(16, 128)
    with torch.inference_mode():
        got = layer(rows)
        state = layer.weight.quant_state
        assert not getattr(state, "packing_format_for_cpu", False)
        import bitsandbytes

        weight = bitsandbytes.functional.dequantize_4bit(layer.weight.data, state)
        expected = torch.nn.functional.linear(rows, weight, layer.bias)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_the_int8_outlier_threshold_is_off() -> None:
    assert quantize_linear(nn.Linear(8, 8), "llm-int8").state.threshold == 0.0


@pytest.mark.parametrize("quant", ["nf4", "fp4", "nf4-dq", "fp4-dq", "llm-int8", "int8", "int4", "w8a16"])
def test_bytes_are_those_announced_before_and_after_a_forward(make_checkpoint: Make, quant: str) -> None:
    checkpoint = Checkpoint.open(str(make_checkpoint(attention_bias=True, mlp_bias=True)))
    pipeline = Pipeline(checkpoint, 2, quant=quant)
    for _ in range(2):
        for block in pipeline.blocks:
            expected = LayerBlock.required_bytes(checkpoint, block.start, block.stop, quant=quant)
            assert block.weight_bytes == expected
        pipeline.commit([1, 2])


def test_the_embedding_and_the_head_stay_as_they_are(directory: Path) -> None:
    model = ReferenceModel.load(str(directory), "nf4").model
    assert type(model.lm_head) is nn.Linear
    assert type(model.model.embed_tokens) is nn.Embedding
    assert type(model.model.layers[0].mlp.up_proj).__name__ == "Linear4bit"


def test_unknown_names_are_refused(directory: Path) -> None:
    with pytest.raises(BadRequestError, match="none, int8, llm-int8, nf4, fp4"):
        quantize_linear(nn.Linear(2, 2), "int3")
    with pytest.raises(BadRequestError):
        LayerBlock.load(Checkpoint.open(str(directory)), 0, 1, quant="gptq")


@pytest.mark.parametrize("quant", ["nf4", "fp4", "nf4-dq", "fp4-dq", "llm-int8"])
def test_weights_are_quantised_in_parts_as_bitsandbytes_does_at_once(
    quant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowedge.models.quant.backend.CHUNK_WEIGHTS", 6400)
    weight = torch.randn(130, 100)
    backend = backend_of(quant)
    ours = backend.encode(WeightRows.of(weight))
    bnb = library()
    if quant == "llm-int8":
        layer = bnb.nn.Linear8bitLt(100, 130, bias=False, has_fp16_weights=False)
        layer.weight = bnb.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    else:
        layer = bnb.nn.Linear4bit(
            100, 130, bias=False, quant_type=quant[:3], compress_statistics="dq" in quant
        )
        layer.weight = bnb.nn.Params4bit(
            weight, quant_type=quant[:3], compress_statistics="dq" in quant, requires_grad=False, module=layer
        )
    theirs = layer.to("cpu").state_dict()
    for name in ours:
        if "quant_state" in name:
            assert json.loads(bytes(ours[name].tolist())) == json.loads(bytes(theirs[name].tolist()))
        else:
            assert torch.equal(ours[name], theirs[name]), name


def test_a_device_that_has_no_kernel_is_refused() -> None:
    for quant in ("nf4", "int4", "w8a16"):
        with pytest.raises(BadRequestError, match=f"{quant} is not available on meta: .*CPU and on CUDA"):
            quantize_linear(nn.Linear(8, 8, device="meta"), quant)


def test_without_bitsandbytes_its_quantisations_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(bitsandbytes_layers, "version", version)
    cpu = torch.device("cpu")
    own = ("none", "int8", "int4", "w8a16")
    for quant in own:
        check_available(quant, cpu)
    for quant in set(QUANTISATIONS) - set(own):
        with pytest.raises(
            BadRequestError, match=f"{quant} is not available.*int8, int4 and w8a16 need nothing"
        ):
            check_available(quant, cpu)
