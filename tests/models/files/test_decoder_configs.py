"""The configs of these families say what transformers' own configs say."""

from __future__ import annotations

from typing import Any

import pytest

from flowedge.models.families.table import FAMILIES

OWN = [name for name, family in FAMILIES.items() if family.own_config]

_WIDTHS: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 5}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
SETTINGS: list[dict[str, Any]] = [
    {},
    _WIDTHS,
    _WIDTHS | {"num_key_value_heads": 2, "head_dim": 32, "vocab_size": 99, "intermediate_size": 7},
    {"rope_theta": 5e5, "max_position_embeddings": 777},
    {"rope_theta": 5e5, "rope_scaling": _LLAMA3, "max_position_embeddings": 8192},
    {"rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}},
    {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 2, "num_hidden_layers": 4},
    {"sliding_window": None},
    {"layer_types": ["full_attention"] * 3, "num_hidden_layers": 3},
    {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "hidden_act": "gelu"},
    {"bos_token_id": None, "eos_token_id": [1, 2], "pad_token_id": 0, "torch_dtype": "bfloat16"},
    {"rms_norm_eps": 1e-5, "attention_dropout": 0, "initializer_range": 0.5, "pretraining_tp": 2},
    {"something_new": {"inner": [1, 2]}, "architectures": ["Some"], "quantization_config": {"bits": 4}},
]
REFUSED: list[dict[str, Any]] = [  # by some of the families
    _WIDTHS | {"num_key_value_heads": None},
    {"hidden_size": "wide"},
    {"num_hidden_layers": 2.5},
    {"layer_types": "full_attention"},
    {"layer_types": ["full_attention"], "num_hidden_layers": 2},
    {"layer_types": ["other"] * 2, "num_hidden_layers": 2},
    {"rms_norm_eps": None},
    {"eos_token_id": "end"},
    {"rope_parameters": {"rope_type": "linear"}},
]


def configs(model_type: str, settings: dict[str, Any]) -> tuple[Any, Any]:
    """Return our config of a config.json and transformers'; an error in the place of a refused one."""
    raw, family = {"model_type": model_type, **settings}, FAMILIES[model_type]
    made: list[Any] = []
    for kind in (family.config, family.in_transformers.config):
        try:
            made.append(kind.from_dict(dict(raw)))
        except Exception as error:  # noqa: BLE001 (of any type, and compared)
            made.append(error)
    return made[0], made[1]


@pytest.mark.parametrize("model_type", OWN)
def test_configs_have_the_same_fields_and_values(model_type: str) -> None:
    for settings in SETTINGS:
        ours, theirs = configs(model_type, settings)
        assert not isinstance(theirs, Exception), (settings, theirs)
        assert not isinstance(ours, Exception), (settings, ours)
        assert ours.to_dict() == theirs.to_dict()
        assert ours.to_diff_dict() == theirs.to_diff_dict()


@pytest.mark.parametrize("model_type", OWN)
def test_what_transformers_refuses_is_refused(model_type: str) -> None:
    for settings in REFUSED:
        ours, theirs = configs(model_type, settings)
        if isinstance(theirs, Exception):
            assert type(ours) is type(theirs), (settings, ours, theirs)
        else:
            assert ours.to_dict() == theirs.to_dict()
