"""Which settings of GPTQ, AWQ and compressed-tensors are read, and which are refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import AwqConfig, GPTQConfig

from flowedge.core.errors import CheckpointError
from flowedge.models.quant.packed_integers import IntegerFormat
from flowedge.models.quant.stored_layouts import AWQ, GPTQ, CompressedTensors
from flowedge.models.quant.stored_settings import integer_format
from tests.support.integer_checkpoints import compressed_settings

GPTQ_4 = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ_4 = {"quant_method": "awq", "bits": 4, "group_size": 128}

ROUND_4 = {
    "quant_method": "auto-round",
    "packing_format": "auto_round:auto_gptq",
    "bits": 4,
    "group_size": 128,
    "sym": True,
    "data_type": "int",
}


def compressed(**changes: Any) -> dict[str, Any]:
    return compressed_settings(4, 128) | changes


def activations(part: str) -> dict[str, Any]:
    settings = compressed_settings(8, -1)
    settings["config_groups"]["group_0"][part] = {"num_bits": 8, "type": "int", "dynamic": True}
    return settings


def mixed(layout: str) -> dict[str, Any]:
    """Settings whose layout is named in the scheme alone."""
    settings = compressed_settings(4, 128, "mixed-precision")
    settings["config_groups"]["group_0"]["format"] = layout
    return settings


def two_schemes(bits: int, **weights: Any) -> dict[str, Any]:
    first, second = compressed_settings(4, 128), compressed_settings(bits, 128, **weights)
    first["config_groups"]["group_1"] = second["config_groups"]["group_0"]
    return first


SUPPORTED: list[tuple[dict[str, Any], IntegerFormat | None]] = [
    (GPTQ_4, GPTQ(4, 128, reordered=False, zero_offset=1)),
    (GPTQ_4 | {"bits": 8, "desc_act": True}, GPTQ(8, 128, reordered=True, zero_offset=1)),
    (GPTQ_4 | {"checkpoint_format": "gptq_v2"}, GPTQ(4, 128, reordered=False, zero_offset=0)),
    (GPTQ_4 | {"group_size": -1}, GPTQ(4, -1, reordered=False, zero_offset=1)),
    (GPTQ_4 | {"format": "gptq_v2"}, GPTQ(4, 128, reordered=False, zero_offset=0)),
    (GPTQ_4 | {"checkpoint_format": "gptq", "format": "gptq"}, GPTQ(4, 128, False, 1)),
    (GPTQ_4 | {"dynamic": {"-:.*mlp.gate.*": {}}}, GPTQ(4, 128, reordered=False, zero_offset=1)),
    (GPTQ_4 | {"dynamic": {"+:.*up": {"bits": 4}}}, GPTQ(4, 128, reordered=False, zero_offset=1)),
    ({"bits": 4, "group_size": 64, "desc_act": True, "sym": True}, GPTQ(4, 64, True, 1)),
    ({"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM"}, AWQ(128)),
    (AWQ_4 | {"format": "gemm"}, AWQ(128)),
    (ROUND_4, GPTQ(4, 128, reordered=False, zero_offset=1)),
    (ROUND_4 | {"packing_format": "auto_round:auto_awq"}, AWQ(128)),
    (ROUND_4 | {"extra_config": {"model.layers.0.mlp.gate": {"bits": 16}}}, GPTQ(4, 128, False, 1)),
    (
        {"quant_method": "intel/auto-round", "backend": "auto_round:gptq:exllamav2"}
        | {"bits": 8, "group_size": 32, "extra_config": {"model.layers.0": {"bits": 8}}},
        GPTQ(8, 32, False, 1),
    ),
    (AWQ_4, AWQ(128)),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"}, AWQ(64)),
    (compressed(), CompressedTensors(4, packed=True, group=128, symmetric=True, reordered=False)),
    (compressed(sparsity_config={"format": "dense"}), CompressedTensors(4, True, 128, True, False)),
    (compressed_settings(8, -1, "int-quantized"), CompressedTensors(8, False, -1, True, False)),
    (compressed_settings(4, 64, symmetric=False), CompressedTensors(4, True, 64, False, False)),
    (compressed_settings(4, 64, actorder="group"), CompressedTensors(4, True, 64, True, True)),
    (compressed_settings(4, 64, actorder="weight"), CompressedTensors(4, True, 64, True, False)),
    (compressed_settings(4, 64, actorder="dynamic"), CompressedTensors(4, True, 64, True, True)),
    (compressed_settings(4, 64, actorder="static"), CompressedTensors(4, True, 64, True, False)),
    (compressed_settings(8, -1, "naive-quantized"), CompressedTensors(8, False, -1, True, False)),
    (
        compressed_settings(4, -1, strategy=None, group_size=-1),
        CompressedTensors(4, True, -1, True, False),
    ),
    (
        compressed_settings(4, 64, type="INT", strategy="Group"),
        CompressedTensors(4, True, 64, True, False),
    ),
    (
        mixed("pack-quantized"),
        CompressedTensors(4, packed=True, group=128, symmetric=True, reordered=False),
    ),
    (two_schemes(4, observer="mse"), CompressedTensors(4, True, 128, True, False)),
    (two_schemes(4), CompressedTensors(4, True, 128, True, False)),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, None),
    ({"quant_method": "fp8"}, None),
    ({}, None),
]


def test_supported_settings() -> None:
    for settings, expected in SUPPORTED:
        assert integer_format(settings) == expected, settings


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (GPTQConfig(bits=4, group_size=64, desc_act=True), GPTQ(4, 64, reordered=True, zero_offset=1)),
        (GPTQConfig(bits=8, format="gptq_v2"), GPTQ(8, 128, reordered=False, zero_offset=0)),
        (AwqConfig(bits=4, group_size=64), AWQ(64)),
    ],
)
def test_settings_that_transformers_writes(written: GPTQConfig, expected: IntegerFormat) -> None:
    assert integer_format(json.loads(written.to_json_string(use_diff=False))) == expected


REFUSED: list[tuple[dict[str, Any], str]] = [
    (GPTQ_4 | {"bits": 3}, "quantised by GPTQ with weights of 3 bits, .*supported: 4 or 8 bits"),
    (GPTQ_4 | {"bits": "4"}, "its setting bits is '4'"),
    (GPTQ_4 | {"group_size": 16}, "groups of 16 weights"),
    (GPTQ_4 | {"group_size": -128}, "groups of -128 weights"),
    (GPTQ_4 | {"group_size": None}, "its setting group_size is None"),
    (GPTQ_4 | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
    (GPTQ_4 | {"lm_head": True}, "a quantised LM head"),
    (GPTQ_4 | {"format": "marlin"}, "checkpoint_format 'marlin'"),
    (GPTQ_4 | {"is_marlin_format": True}, "checkpoint_format 'marlin'"),
    (GPTQ_4 | {"rotation": "hadamard"}, "rotated weights"),
    (GPTQ_4 | {"dynamic": {"+:.*up": {"bits": 8}}}, "settings of single modules"),
    (GPTQ_4 | {"dynamic": {"-:.*gate": {}, ".*up": {"group_size": 32}}}, "settings of single modules"),
    (GPTQ_4 | {"dynamic": ["-:.*gate"]}, "settings of single modules"),
    (GPTQ_4 | {"pack_dtype": "int8"}, "pack_dtype 'int8'"),
    (ROUND_4 | {"packing_format": "auto_round:exllamav2"}, "packing_format 'auto_round:exllamav2'"),
    (ROUND_4 | {"packing_format": None}, "packing_format 'None'"),
    (ROUND_4 | {"act_bits": 8}, r"quantised activations \(act_bits 8\)"),
    (ROUND_4 | {"data_type": "mx_fp"}, "weights of type 'mx_fp'"),
    (ROUND_4 | {"extra_config": {"model.layers.0": {"bits": 8}}}, "settings of single layers"),
    (ROUND_4 | {"extra_config": ["x"]}, "settings of single layers"),
    (ROUND_4 | {"bits": 2}, "weights of 2 bits"),
    (AWQ_4 | {"bits": 8}, "quantised by AWQ with weights of 8 bits"),
    (AWQ_4 | {"version": "gemv"}, "the layout of version 'gemv'"),
    (AWQ_4 | {"format": "gemv_fast"}, "the layout of version 'gemv_fast'"),
    (AWQ_4 | {"backend": "llm-awq"}, "the layout of version 'llm-awq'"),
    (AWQ_4 | {"zero_point": False}, "weights without zero points"),
    (compressed(format="float-quantized"), "compressed-tensors with format 'float-quantized'"),
    (compressed(format="marlin-24"), "format 'marlin-24'"),
    (compressed(format="nvfp4-pack-quantized"), "format 'nvfp4-pack-quantized'"),
    (mixed("float-quantized"), "format 'float-quantized'"),
    (compressed(format="mixed-precision"), "format 'mixed-precision'"),
    (compressed(format="dense"), "format 'dense'"),
    (compressed(sparsity_config={"format": "sparse-24-bitmask"}), "sparse weights"),
    (compressed(kv_cache_scheme={"num_bits": 8}), "a quantised KV cache"),
    (compressed(transform_config={"config_groups": {}}), "transforms of activations"),
    (compressed(config_groups={}), "no scheme of weights"),
    (compressed(config_groups={"group_0": {"weights": None}}), "no scheme of weights"),
    (compressed(config_groups=[]), "no scheme of weights"),
    (compressed_settings(4, 128, type="float"), "weights of type 'float'"),
    (compressed_settings(2, 128), "weights of 2 bits"),
    (compressed_settings(8, -1, strategy="tensor"), "scales by 'tensor'"),
    (compressed_settings(4, 128, strategy="block"), "scales by 'block'"),
    (compressed_settings(8, -1, dynamic=True), "quantised at run time"),
    (compressed_settings(4, 100), "groups of 100 weights"),
    (activations("input_activations"), r"quantised activations \(input_activations\)"),
    (activations("output_activations"), r"quantised activations \(output_activations\)"),
    (two_schemes(8), "several schemes of weights"),
]


def test_other_settings_are_refused() -> None:
    for settings, message in REFUSED:
        with pytest.raises(CheckpointError, match=message):
            integer_format(settings)
