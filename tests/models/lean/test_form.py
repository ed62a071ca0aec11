"""The forms of the families' layers, and the layers whose form is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig
from transformers.activations import ACT2FN

from flowedge.models.dense.layer import DenseLayer
from flowedge.models.exact.aligned_activation import align_activations
from flowedge.models.files.families import FAMILIES
from flowedge.models.layers.experts import split_experts
from flowedge.models.lean.form import LayerForm, layer_form
from flowedge.models.quant.quantize import quantize_block
from tests.models.tiny_families import SHARED, TINY

PLAIN: dict[str, Any] = {
    "hidden": 32,
    "heads": 4,
    "kv_heads": 2,
    "head_size": 8,
    "rotates": True,
    "scaling": 8**-0.5,
    "softcap": None,
    "norm_eps": 1e-6,
    "norm_plus_one": False,
    "sandwich": False,
    "query_key_norms": False,
    "residual_multiplier": 1.0,
    "activation": "silu",
    "experts": False,
}
GEMMA: dict[str, Any] = {
    "head_size": 16,
    "scaling": 20**-0.5,
    "norm_plus_one": True,
    "sandwich": True,
    "activation": "gelu_tanh",
}
# The name of a tiny model -> the differences of its layer 1 from PLAIN.
FORMS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"head_size": 12, "scaling": 12**-0.5},
    "qwen2": {},
    "qwen3": {"head_size": 16, "scaling": 16**-0.5, "query_key_norms": True},
    "gemma2": {**GEMMA, "softcap": 2.0},
    "gemma3": {**GEMMA, "query_key_norms": True},
    "phi3": {"norm_eps": 1e-5},
    "granite": {"scaling": 0.2, "residual_multiplier": 0.6},
    "smollm3": {"rotates": False},
    "mixtral": {"norm_eps": 1e-5, "experts": True},
    "qwen3_moe": {"head_size": 16, "scaling": 16**-0.5, "query_key_norms": True},
}


def tiny_config(name: str, **changes: Any) -> Any:
    model_type, own = TINY[name]
    return AutoConfig.for_model(model_type, **(SHARED | own | changes))


def tiny_layer(config: Any, index: int = 1) -> Any:
    """Return transformers' layer of a config."""
    layer = FAMILIES[config.model_type].in_transformers.decoder_layer(config, index)
    return split_experts(layer.requires_grad_(False)).eval()


def form_of(config: Any, index: int = 1) -> LayerForm:
    form = layer_form(tiny_layer(config, index), config)
    assert isinstance(form, LayerForm), form
    return form


def test_every_family_has_its_form() -> None:
    for name, expected in FORMS.items():
        form = form_of(tiny_config(name))
        found = {field.name: getattr(form, field.name) for field in fields(form)}
        assert found == PLAIN | expected, name


@pytest.mark.parametrize("name", [name for name in FORMS if FAMILIES[TINY[name][0]].dense])
def test_a_dense_layer_has_the_form_of_transformers(name: str) -> None:
    config = tiny_config(name)
    layer = FAMILIES[config.model_type].decoder_layer(config, 1).eval()
    assert isinstance(layer, DenseLayer)
    assert layer_form(layer, config) == form_of(config)


def test_forms_are_known_for_all_families() -> None:
    assert {TINY[name][0] for name in FORMS} | {"gemma3"} == {*FAMILIES}  # gemma3's text is a gemma3_text


def test_layers_of_a_model_differ() -> None:
    assert [form_of(tiny_config("smollm3"), index).rotates for index in range(4)] == [
        True,
        False,
        True,
        False,
    ]
    assert [form_of(tiny_config("qwen3_moe"), index).experts for index in (0, 1)] == [True, False]


@pytest.mark.parametrize("quant", ["int4", "w8a16", "nf4"])
def test_quantised_layers_have_the_same_form(quant: str) -> None:
    config = tiny_config("llama")
    layer = tiny_layer(config)
    before = layer_form(layer, config)
    assert layer_form(quantize_block(layer, quant, torch.float32), config) == before


@pytest.mark.parametrize(
    ("name", "activation"), [("silu", "silu"), ("gelu", "gelu"), ("gelu_pytorch_tanh", "gelu_tanh")]
)
def test_activations_that_are_known(name: str, activation: str) -> None:
    config = tiny_config("llama", hidden_act=name)
    layer = tiny_layer(config)
    assert layer_form(layer, config).activation == activation  # type: ignore[union-attr]
    align_activations(layer)
    assert layer_form(layer, config).activation == activation  # type: ignore[union-attr]


def test_other_activations_are_odd() -> None:
    for name in {*ACT2FN} - {"silu", "swish", "gelu", "gelu_pytorch_tanh", "prelu", "xielu"}:
        config = tiny_config("llama", hidden_act=name)
        assert "is not known" in str(layer_form(tiny_layer(config), config)), name


class OtherLinear(nn.Linear):
    """A module that a later version of transformers might add."""


def _attribute(path: str, name: str, value: object) -> Callable[[Any], None]:
    return lambda layer: setattr(layer.get_submodule(path) if path else layer, name, value)


ODD: list[tuple[str, Callable[[Any], None], str]] = [
    ("llama", _attribute("", "residual_scale", 2.0), "layer has the unknown attribute residual_scale"),
    ("llama", _attribute("self_attn", "temperature", 2.0), "attention has the unknown attribute temper"),
    ("qwen2", _attribute("mlp", "limit", 7.0), "MLP has the unknown attribute limit"),
    ("llama", _attribute("self_attn", "sinks", nn.Parameter(torch.ones(4))), "unknown attribute sinks"),
    (
        "llama",
        _attribute("self_attn", "gate", OtherLinear(2, 2)),
        "attention has the unknown module gate",
    ),
    ("llama", _attribute("", "extra", OtherLinear(2, 2)), "layer has the unknown module extra"),
    ("gemma3", _attribute("self_attn", "k_norm", None), "attention has no module k_norm"),
    ("gemma3", _attribute("self_attn", "attn_logit_softcapping", 2.0), "soft cap"),
    ("llama", _attribute("", "input_layernorm", nn.LayerNorm(32)), "is a LayerNorm"),
    ("llama", _attribute("post_attention_layernorm", "variance_epsilon", 1e-3), "another epsilon"),
    ("llama", _attribute("input_layernorm", "offset", 1.0), "input_layernorm has the unknown attribute"),
    ("llama", _attribute("", "mlp", OtherLinear(2, 2)), "has a OtherLinear, not transformers' LlamaMLP"),
    ("phi3", _attribute("self_attn", "qkv_proj", None), "attention has no module"),
]


def test_what_is_not_known_is_odd() -> None:
    for name, change, reason in ODD:
        config = tiny_config(name)
        layer = tiny_layer(config)
        change(layer)
        assert reason in str(layer_form(layer, config))


def test_layers_of_other_families_are_odd() -> None:
    layer = tiny_layer(tiny_config("llama"))
    assert "not transformers' Qwen2DecoderLayer" in str(layer_form(layer, tiny_config("qwen2")))
    other: Any = AutoConfig.for_model("gpt2")
    assert "'gpt2' is not known" in str(layer_form(layer, other))


def test_dropout_is_odd_in_training_alone() -> None:
    config = tiny_config("llama", attention_dropout=0.1)
    layer = tiny_layer(config)
    assert isinstance(layer_form(layer, config), LayerForm)
    assert "dropout" in str(layer_form(layer.train(), config))
