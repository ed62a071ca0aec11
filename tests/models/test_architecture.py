"""What the families' configs say of their layers, and what is refused."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.activations import ACT2FN

from flowedge.core.errors import CheckpointError
from flowedge.models.architecture import Architecture
from flowedge.models.check.split_experts import split_experts
from flowedge.models.decoder_layer import empty_layer
from flowedge.models.families.parts import (
    Clamp,
    DeltaNet,
    Experts,
    KeyHeads,
    Latent,
    Mamba2,
    ShortConvolution,
)
from flowedge.models.families.table import FAMILIES, family_of
from tests.models.layer_pairs import own_tensors, tiny_config, tiny_layer
from tests.models.tiny_families import LAYERS, TINY, VOCAB, WINDOW

LLAMA: dict[str, Any] = {
    "hidden": 32,
    "intermediate": 48,
    "heads": 4,
    "kv_heads": 2,
    "head_size": 8,
    "full_heads": None,
    "windows": (None,) * LAYERS,
    "rotated": (True,) * LAYERS,
    "halves": ("both",) * LAYERS,
    "partial_rotary": False,
    "scaling": 8**-0.5,
    "softcap": None,
    "norm_eps": 1e-6,
    "norm_plus_one": False,
    "norm_in_float": False,
    "norms_after": False,
    "query_key_norms": False,
    "sinks": False,
    "value_norm": False,
    "keys_as_values": False,
    "key_layers": (0, 1, 2, 3),
    "layer_factor": False,
    "layer_input": 0,
    "layer_vocab": 0,
    "qkv_bias": False,
    "output_bias": False,
    "mlp_bias": False,
    "fused": False,
    "activation": "silu",
    "gated": True,
    "experts": None,
    "recurrence": None,
    "latent": None,
    "output_gate": False,
    "residual_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "embedding_rounded": False,
    "logits_divisor": 1.0,
    "logits_softcap": None,
}
GEMMA: dict[str, Any] = {
    "head_size": 16,
    "scaling": 20**-0.5,
    "norm_plus_one": True,
    "norms_after": True,
    "activation": "gelu_tanh",
    "embedding_multiplier": 32**0.5,
    "embedding_rounded": True,
    "logits_softcap": 3.0,
}
# The name of a tiny model -> its differences from LLAMA.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "mistral": {"head_size": 12, "scaling": 12**-0.5, "windows": (WINDOW,) * LAYERS},
    "ministral3": {"head_size": 16, "scaling": 16**-0.5, "norm_eps": 1e-5, "windows": (None,) * LAYERS},
    "qwen2": {"qkv_bias": True},
    "qwen2-windows": {"qkv_bias": True, "windows": (None, None, WINDOW, WINDOW)},
    "qwen3": {
        "head_size": 16,
        "scaling": 16**-0.5,
        "query_key_norms": True,
        "qkv_bias": True,
        "output_bias": True,
    },
    "gemma2": {**GEMMA, "softcap": 2.0, "windows": (WINDOW, None, WINDOW, None)},
    "gemma3": {**GEMMA, "query_key_norms": True, "windows": (WINDOW, WINDOW, None, WINDOW)},
    "phi3": {"norm_eps": 1e-5, "fused": True, "partial_rotary": True, "windows": (WINDOW,) * LAYERS},
    "granite": {
        "scaling": 0.2,
        "residual_multiplier": 0.6,
        "embedding_multiplier": 3.0,
        "logits_divisor": 2.5,
        "qkv_bias": True,
        "output_bias": True,
    },
    "granitehybrid": {
        "scaling": 0.2,
        "rotated": (False,) * LAYERS,
        "residual_multiplier": 0.6,
        "embedding_multiplier": 3.0,
        "logits_divisor": 2.5,
        "qkv_bias": True,
        "output_bias": True,
        "recurrence": Mamba2(2, 32, 8, 4, 4, layers=(True, True, False, True)),
    },
    "granitehybrid-attention": {"scaling": 1.0},
    "granitehybrid-experts": {
        "intermediate": 64,
        "scaling": 1.0,
        "rotated": (False,) * LAYERS,
        "recurrence": Mamba2(1, 32, 8, 4, 4, layers=(True, True, False, True)),
        "experts": Experts(
            6, 2, 48, normalised=True, rounded=True, layers=(True,) * LAYERS, shared=64, shared_gate=False
        ),
    },
    "nemotron_h": {
        "norm_eps": 1e-5,
        "rotated": (False,) * LAYERS,
        "halves": ("mixing", "mlp", "mixing", "mlp"),
        "activation": "relu2",
        "gated": False,
        "recurrence": Mamba2(2, 32, 8, 4, 4, layers=(True, False, False, False)),
        "experts": Experts(
            6,
            2,
            32,
            normalised=True,
            rounded=False,
            layers=(False, True, False, False),
            scores="sigmoid",
            choice_bias=True,
            least_sum=1e-20,
            scale=1.5,
            shared=64,
            shared_gate=False,
            unrounded=True,
        ),
    },
    "smollm3": {"rotated": (True, False, True, False)},
    "mixtral": {
        "norm_eps": 1e-5,
        "windows": (WINDOW,) * LAYERS,
        "experts": Experts(6, 2, 48, normalised=True, rounded=False, layers=(True,) * LAYERS),
    },
    "qwen3_moe": {
        "head_size": 16,
        "scaling": 16**-0.5,
        "query_key_norms": True,
        "experts": Experts(6, 2, 24, normalised=True, rounded=True, layers=(True, False, True, True)),
    },
    "qwen3_5": {
        "head_size": 16,
        "scaling": 16**-0.5,
        "norm_plus_one": True,
        "query_key_norms": True,
        "partial_rotary": True,
        "recurrence": DeltaNet(16, 32, 8, 8, 4, layers=(True, False, True, True)),
        "output_gate": True,
    },
}
ARCHITECTURES["gemma4"] = {
    **GEMMA,
    "norm_plus_one": False,
    "norm_in_float": True,
    "scaling": 1.0,
    "query_key_norms": True,
    "value_norm": True,
    "layer_factor": True,
    "windows": (WINDOW, None, WINDOW, None),
    "full_heads": KeyHeads(1, 32),
    "keys_as_values": True,
}
ARCHITECTURES["gemma4_unified"] = ARCHITECTURES["gemma4"]
ARCHITECTURES["gemma4-small"] = ARCHITECTURES["gemma4"] | {
    "full_heads": KeyHeads(2, 32),
    "keys_as_values": False,
    "key_layers": (0, 1, 0, 1),
    "sharing_intermediate": 96,
    "layer_input": 32,
    "layer_vocab": VOCAB,
}
ARCHITECTURES["gemma4-moe"] = ARCHITECTURES["gemma4"] | {
    "experts": Experts(6, 2, 32, normalised=True, rounded=False, layers=(True,) * LAYERS, beside_mlp=True),
}
ARCHITECTURES["lfm2"] = {
    "intermediate": 48,
    "norm_eps": 1e-5,
    "query_key_norms": True,
    "recurrence": ShortConvolution(32, 3, layers=(True, True, False, True)),
}
ARCHITECTURES["gpt_oss"] = {
    "intermediate": 32,
    "head_size": 16,
    "scaling": 16**-0.5,
    "norm_eps": 1e-5,
    "windows": (WINDOW, None, WINDOW, None),
    "qkv_bias": True,
    "output_bias": True,
    "sinks": True,
    "experts": Experts(
        6,
        2,
        32,
        normalised=True,
        rounded=True,
        layers=(True,) * LAYERS,
        biases=True,
        clamp=Clamp(0.8, 1.702),
    ),
}
ARCHITECTURES["glm4_moe_lite"] = {
    "intermediate": 64,
    "kv_heads": 1,
    "head_size": 72,
    "scaling": 20**-0.5,
    "norm_eps": 1e-5,
    "qkv_bias": True,
    "output_bias": True,
    "latent": Latent(rank=64, rotated=8, plain=12, value=16, query_rank=96, paired=True),
    "experts": Experts(
        6,
        2,
        32,
        normalised=True,
        rounded=False,
        layers=(False, True, True, True),
        scores="sigmoid",
        choice_bias=True,
        least_sum=1e-20,
        scale=1.8,
        shared=32,
        shared_gate=False,
        unrounded=True,
    ),
}
ARCHITECTURES["glm4_moe_lite-yarn"] = ARCHITECTURES["glm4_moe_lite"] | {
    "scaling": 20**-0.5 * (0.08 * math.log(4) + 1) ** 2,
    "qkv_bias": False,
    "output_bias": False,
    "latent": Latent(rank=64, rotated=8, plain=12, value=16, query_rank=None, paired=False),
    "experts": replace(
        ARCHITECTURES["glm4_moe_lite"]["experts"], layers=(True, False, True, False), shared=64
    ),
}
ARCHITECTURES["lfm2_moe"] = ARCHITECTURES["lfm2"] | {
    "experts": Experts(
        6,
        2,
        32,
        normalised=True,
        rounded=True,
        layers=(False, True, True, True),
        scores="sigmoid",
        choice_bias=True,
        least_sum=1e-6,
        scale=1.5,
    ),
}
ARCHITECTURES["qwen3_5_moe"] = ARCHITECTURES["qwen3_5"] | {
    "experts": Experts(6, 2, 32, normalised=True, rounded=True, layers=(True,) * LAYERS, shared=32),
}
ARCHITECTURES["qwen3_next"] = ARCHITECTURES["qwen3_5"] | {
    "experts": Experts(6, 2, 32, normalised=False, rounded=True, layers=(True, True, False, True), shared=32),
}


def architecture_of(config: Any) -> Architecture:
    return Architecture.of(family_of(config.model_type), config)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_family_has_its_architecture(name: str) -> None:
    architecture = architecture_of(tiny_config(name))
    found = {field.name: getattr(architecture, field.name) for field in fields(architecture)}
    expected = LLAMA | ARCHITECTURES[name]
    assert found == {"sharing_intermediate": expected["intermediate"]} | expected


def test_all_families_are_tested() -> None:
    # Of gemma3_text, Gemma 4's and Qwen 3.5's decoders, and ministral3.
    multimodal = {"gemma3", "gemma4", "gemma4_unified", "mistral3", "qwen3_5", "qwen3_5_moe"}
    assert {TINY[name][0] for name in ARCHITECTURES} | multimodal == {*FAMILIES}


def test_what_rows_carry_between_layers() -> None:
    """Beside the hidden state: what later layers are given of the token, and the keys that they read."""
    small = architecture_of(tiny_config("gemma4-small"))
    near, far = 2 * 2 * 16, 2 * 2 * 32  # of a layer with a window, of one without
    assert [small.row_width(layer) for layer in range(LAYERS + 1)] == [
        32,
        32 + 3 * 32 + near,
        32 + 2 * 32 + near + far,
        32 + 32 + far,
        32,
    ]
    assert [small.cached_layers(*layers) for layers in ((0, 2), (1, 3), (2, 4), (3, 4))] == [
        [0, 1],
        [0, 1],
        [0, 1],
        [1],
    ]
    assert [small.carried_keys(layer) for layer in range(LAYERS)] == [[], [0], [0, 1], [1]]
    plain = architecture_of(tiny_config("gemma4"))
    assert {plain.row_width(layer) for layer in range(LAYERS + 1)} == {32}


@pytest.mark.parametrize("name", TINY)
def test_a_layer_has_the_tensors_of_transformers(name: str) -> None:
    config = tiny_config(name)
    for index in range(LAYERS):
        with torch.device("meta"):
            theirs = split_experts(tiny_layer(config, index)).state_dict()
            theirs = own_tensors(theirs, family_of(config.model_type).of(config), architecture_of(config))
        ours = empty_layer(architecture_of(config), index).state_dict()
        assert {key: each.shape for key, each in ours.items()} == {
            key: each.shape for key, each in theirs.items()
        }


@pytest.mark.parametrize(
    ("name", "activation"),
    [("silu", "silu"), ("gelu", "gelu"), ("gelu_pytorch_tanh", "gelu_tanh"), ("relu2", "relu2")],
)
def test_activations(name: str, activation: str) -> None:
    assert architecture_of(tiny_config("llama", hidden_act=name)).activation == activation


def test_other_activations_are_refused() -> None:
    supported = {"silu", "swish", "gelu", "gelu_pytorch_tanh", "relu2"}
    for name in {*ACT2FN, "../x", "no_such_function"} - supported:
        with pytest.raises(CheckpointError, match=f"{name}' is not supported; supported: gelu, gelu_pytorch"):
            architecture_of(tiny_config("llama", hidden_act=name))


def test_other_families_are_refused_by_name() -> None:
    other: Any = AutoConfig.for_model("gpt2")
    with pytest.raises(CheckpointError, match="'gpt2' is not supported; supported types: gemma2, gemma3"):
        family_of(other.model_type)
