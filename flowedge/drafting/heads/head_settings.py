"""What the config.json of a draft head asks for, in its published layout or in that of speculators.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.models.taps import Taps, check_taps, eagle3_taps
from flowedge.text.json_object import read_json_object

CONFIG_NAME = "config.json"
LAYERS_KEY = "eagle_aux_hidden_state_layer_ids"
LAYER_KEY, KIND_KEY = "transformer_layer_config", "speculators_model_type"  # of a config of speculators
_EAGLE3 = "eagle3"
_KINDS = (_EAGLE3, "peagle", "dflash", "dflash2", "dspark")
_LAYER_TYPES = ("llama", "qwen3")
_RESIDUAL = "norm_before_residual"
_OF_EAGLE = "eagle_config"
_COUNT = "num_aux_hidden_states"
_PUBLISHED_TAPS = 3
PARALLEL = ("parallel_drafting", "ptd_token_id", "pard_token", "mask_token_id")  # settings of P-EAGLE
# Setting -> the values with which a head computes what Eagle3Head does. None is such a value of all.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(PARALLEL, ()),
    "parallel_drafting": (False,),
    "logit_scale": (1,),
}
_NEUTRAL_IN_EAGLE_CONFIG: dict[str, tuple[object, ...]] = {
    "use_aux_hidden_state": (True,),
    "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,),
    "use_mtp_layernorm": (False,),
    "next_layer_regular": (True,),
    "parallel_draft_step": (1,),
    "has_lm_head": (True,),
}


def read_settings(directory: Path) -> dict[str, Any]:
    """Return the settings of a head and of its layer, which speculators stores as an object of its own.

    Raises:
        CheckpointError: when the config cannot be read, or is that of another kind of head of speculators.
    """
    path = directory / CONFIG_NAME
    settings = read_json_object(path)
    if LAYER_KEY not in settings and KIND_KEY not in settings:
        return settings
    kind, layer = settings.get(KIND_KEY), settings.pop(LAYER_KEY, None)
    if kind not in _KINDS:
        known = ", ".join(map(repr, _KINDS))
        raise CheckpointError(f"{path}: {KIND_KEY} is {kind!r}; of these heads {known} are known")
    if not isinstance(layer, dict) or layer.get("model_type", "llama") not in _LAYER_TYPES:
        shown = layer.get("model_type") if isinstance(layer, dict) else None
        raise CheckpointError(
            f"{path}: {LAYER_KEY} has the model_type {shown!r}; known are {' and '.join(_LAYER_TYPES)}"
        )
    # Readers have different defaults for it.
    if kind in (_EAGLE3, "peagle") and _RESIDUAL not in settings:
        raise CheckpointError(f"{path}: {_RESIDUAL} is missing, which says how the layer is wired")
    return settings | layer


@dataclass(frozen=True)
class Eagle3Wiring:
    """How an EAGLE-3 head is wired.

    Attributes:
        taps: the number of layers of the target whose inputs it reads.
        layers: these layers, where the config names them; None for those of `eagle3_taps`.
        norm_before_fc: whether one norm over all tapped states together comes before `fc`.
        fc_norm: whether each tapped state has a norm of its own before `fc` (EAGLE-3.1, arXiv 2605.09992).
        norm_output: whether states are normed outputs, and not outputs before the norm (likewise).
        norm_before_residual: whether the layer's residual is the normed state.
    """

    taps: int = _PUBLISHED_TAPS
    layers: Taps | None = None
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_residual: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any], path: Path) -> Eagle3Wiring:
        """Read the settings of a head.

        path: the file to name in errors.

        Raises:
            CheckpointError: when a setting is wrong, or asks for what is not computed.
        """
        check_neutral(settings, _NEUTRAL, path, "")
        of_eagle = settings.get(_OF_EAGLE) or {}
        if not isinstance(of_eagle, dict):
            raise CheckpointError(f"{path}: {_OF_EAGLE} is {of_eagle!r:.80}, not an object")
        for name in of_eagle:
            if name not in _NEUTRAL_IN_EAGLE_CONFIG and name != LAYERS_KEY:
                raise CheckpointError(f"{path} sets {_OF_EAGLE}.{name}, which is not supported")
        check_neutral(of_eagle, _NEUTRAL_IN_EAGLE_CONFIG, path, f"{_OF_EAGLE}.")
        names = ("norm_before_fc", "fc_norm", "norm_output", _RESIDUAL)
        before_fc, each, output, residual = (_switch(settings, name, path) for name in names)
        if before_fc and each:
            raise CheckpointError(f"{path} sets both norm_before_fc and fc_norm, of which one is meant")
        layers = _named_layers(settings, of_eagle, path)
        count = settings.get(_COUNT)
        taps = _PUBLISHED_TAPS if layers is None else len(layers)
        if count not in (None, taps):
            raise CheckpointError(f"{path}: {_COUNT} is {count!r:.80}, but the head reads {taps} layers")
        return cls(taps, layers, before_fc, each, output, residual)

    def tapped(self, num_layers: int, path: Path) -> Taps:
        """Return the layers whose inputs the head reads, of a target with so many layers.

        Raises:
            BadRequestError: when the config names none and the target has too few layers.
            CheckpointError: when the config names layers that the target has not.
        """
        if self.layers is None:
            return eagle3_taps(num_layers)
        try:
            return check_taps(self.layers, num_layers)
        except BadRequestError as error:
            raise CheckpointError(f"{path}: {LAYERS_KEY}: {error}") from error

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a config.json that say this, without defaults."""
        flags = ("norm_before_fc", "fc_norm", "norm_output", _RESIDUAL)
        named = {} if self.layers is None else {LAYERS_KEY: list(self.layers)}
        return named | {name: True for name in flags if getattr(self, name)}


def _named_layers(settings: Mapping[str, Any], of_eagle: Mapping[str, Any], path: Path) -> Taps | None:
    """The layers that a config names, each by its index among the inputs of layers.

    At the top an id is that of the layer whose input is read, as vLLM and speculators have it. In
    `eagle_config` it is so as well, unless the first id is 1: then ids are those of layers whose outputs are
    read, as SGLang decides.
    """
    own = _ids(settings, LAYERS_KEY, path) or _ids(settings, "aux_hidden_state_layer_ids", path)
    within = _ids(of_eagle, LAYERS_KEY, path, f"{_OF_EAGLE}.")
    if within is not None and within[0] == 1:
        within = tuple(index + 1 for index in within)
    if own is not None and within is not None and own != within:
        raise CheckpointError(
            f"{path}: {LAYERS_KEY} means the inputs of the layers {list(own)}, that of {_OF_EAGLE} those of "
            f"{list(within)}"
        )
    return own or within


def _ids(settings: Mapping[str, Any], name: str, path: Path, within: str = "") -> Taps | None:
    value = settings.get(name)
    if value in (None, []):
        return None
    if not isinstance(value, list) or not all(type(index) is int and index >= 0 for index in value):
        raise CheckpointError(f"{path}: {within}{name} is {value!r:.80}, not a list of layers")
    return tuple(value)


def _switch(settings: Mapping[str, Any], name: str, path: Path) -> bool:
    value = settings.get(name)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{path}: {name} is {value!r:.80}, not true or false")
    return bool(value)


def check_neutral(
    settings: Mapping[str, Any], neutral: Mapping[str, tuple[object, ...]], path: Path, within: str
) -> None:
    """Check that no setting asks for what is not computed.

    Args:
        neutral: the values of a setting that change nothing; None is such a value of each.
        within: stands before a setting's name in errors.

    Raises:
        CheckpointError: when a setting has another value.
    """
    for name, values in neutral.items():
        value = settings.get(name)
        if value is not None and value not in values:
            raise CheckpointError(f"{path} sets {within}{name} to {value!r:.80}, which is not supported")


def number_of(settings: Mapping[str, Any], name: str, path: Path, least: int) -> int:
    """Return a setting that is a whole number of `least` or more. Raises CheckpointError for others."""
    value = settings.get(name)
    if type(value) is not int or value < least:
        raise CheckpointError(f"{path}: {name} is {value!r:.80}, not a number of {least} or more")
    return value
