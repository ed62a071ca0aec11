"""What the config.json of a block head asks for, in each of its published layouts. Imports no torch.

- DFlash (arXiv 2602.06036) and JetSpec (2606.18394): "DFlashDraftModel", settings in `dflash_config`.
- DSpark (arXiv 2607.05147): "Qwen3DSparkModel", settings at the top.
- Both in the layout of speculators: `speculators_model_type` "dflash" or "dspark".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.drafting.heads.head_settings import KIND_KEY, check_neutral, number_of
from flowedge.models.taps import Taps, check_taps

DFLASH, DSPARK = "DFlashDraftModel", "Qwen3DSparkModel"
OF_DFLASH = "dflash_config"
TARGET_LAYERS = "target_layer_ids"  # of the layers whose outputs are read
_KINDS = {"dflash": DFLASH, "dspark": DSPARK}  # of speculators
_INPUT_LAYERS = "aux_hidden_state_layer_ids"  # of the layers whose inputs are read, in speculators
_MASKS = ("mask_token_id", "dspark_noise_token_id")
_CAUSAL = ("causal_head", "is_causal", "causal")  # of all layers; without one, windowed layers are causal
_SLIDING = "sliding_attention"
# Settings that would change what is computed, and the values with which they do not. None is one for all.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "markov_head_type": ("vanilla",),
    "target_hidden_size": (),
    "conv_kernel_size": (),
    "selector_rank": (),
    "draft_adapter_rank": (0,),
    "projector_type": ("dflash", "dspark"),
    "attention_sink_bias": (False,),
    "logit_scale": (1,),
}


@dataclass(frozen=True)
class BlockLayer:
    """What the rows of a block see in a layer.

    Attributes:
        causal: whether a row sees no later row of the block.
        window: how many positions back it sees, its own included; None for all.
    """

    causal: bool
    window: int | None = None


@dataclass(frozen=True)
class BlockWiring:
    """How a block head is wired.

    Attributes:
        size: the rows of a block: the last token of the text, then mask tokens.
        mask_token: its id among the target's tokens.
        taps: the target's layers whose inputs the head reads.
        layers: what rows see in each of the head's layers.
        shifted: whether the row of a token predicts the token after it, and not the one in its own place.
        markov_rank: of the bias that a token adds to the logits of the next token; 0 for none.
        draft_vocab: tokens of its own vocabulary; None where it proposes with the target's LM head.
    """

    size: int
    mask_token: int
    taps: Taps
    layers: tuple[BlockLayer, ...]
    shifted: bool = False
    markov_rank: int = 0
    draft_vocab: int | None = None

    @property
    def depths(self) -> int:
        """How many tokens a block predicts behind its first one."""
        return self.size if self.shifted else self.size - 1

    @classmethod
    def of(cls, settings: Mapping[str, Any], path: Path) -> BlockWiring:
        """Read the settings of a head, with those of its layers beside them.

        Args:
            path: the file to name in errors.

        Raises:
            CheckpointError: when a setting is wrong, or asks for what is not computed.
        """
        kind, own = _kind(settings, path), settings.get(OF_DFLASH) or {}
        if not isinstance(own, dict):
            raise CheckpointError(f"{path}: {OF_DFLASH} is {own!r:.80}, not an object")
        check_neutral(settings, _NEUTRAL, path, "")
        check_neutral(own, _NEUTRAL, path, f"{OF_DFLASH}.")
        both = {**settings, **own}
        size = number_of(both, "block_size", path, 2)
        masks = [name for name in _MASKS if both.get(name) is not None]
        mask = number_of(both, masks[0] if masks else _MASKS[0], path, 0)
        rank = number_of(both, "markov_rank", path, 0) if both.get("markov_rank") else 0
        shifted = both.get("sample_from_anchor", both.get("draft_shift"))
        if shifted is None:
            shifted = kind == DSPARK and KIND_KEY not in settings
        own_vocab = KIND_KEY in settings and settings.get("draft_vocab_size")
        return cls(
            size,
            mask,
            _taps(both, path),
            _layers(both, path),
            bool(shifted),
            rank,
            number_of(settings, "draft_vocab_size", path, 1) if own_vocab else None,
        )

    def tapped(self, num_layers: int, path: Path) -> Taps:
        """Return the layers whose inputs the head reads, of a target with so many layers.

        Raises:
            CheckpointError: when the config names layers that the target has not.
        """
        try:
            return check_taps(self.taps, num_layers)
        except BadRequestError as error:
            raise CheckpointError(f"{path}: {TARGET_LAYERS} + 1: {error}") from error

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a config.json in the layout of DFlash, or of DSpark for a head with a bias."""
        layers = {TARGET_LAYERS: [tap - 1 for tap in self.taps], "mask_token_id": self.mask_token}
        if self.markov_rank:
            markov = {"markov_rank": self.markov_rank, "markov_head_type": "vanilla"}
            kind = {"architectures": [DSPARK], "sample_from_anchor": self.shifted}
            return kind | layers | markov | {"block_size": self.size, "enable_confidence_head": False}
        causal = {"causal_head": True} if any(layer.causal for layer in self.layers) else {}
        return {"architectures": [DFLASH], "block_size": self.size, OF_DFLASH: layers | causal}


def is_block_config(settings: Mapping[str, Any]) -> bool:
    """Return whether a config.json is that of a block head, of a layout that is known or another."""
    named = settings.get("architectures")
    classes = [each for each in named if isinstance(each, str)] if isinstance(named, list) else []
    return (
        OF_DFLASH in settings
        or settings.get(KIND_KEY) in _KINDS
        or any("DFlash" in each or "DSpark" in each for each in classes)
    )


def _kind(settings: Mapping[str, Any], path: Path) -> str:
    spoken = settings.get(KIND_KEY)
    if spoken in _KINDS:
        return _KINDS[spoken]
    named = settings.get("architectures") or [DFLASH]
    if named not in ([DFLASH], [DSPARK]):
        raise CheckpointError(
            f"{path}: architectures is {named!r:.80}; of block heads {DFLASH} and {DSPARK} are known"
        )
    return str(named[0])


def _taps(settings: Mapping[str, Any], path: Path) -> Taps:
    """The tapped layers: an id of `target_layer_ids` is that of a layer whose output is read."""
    of_inputs = _INPUT_LAYERS in settings and TARGET_LAYERS not in settings
    name, added = (_INPUT_LAYERS, 0) if of_inputs else (TARGET_LAYERS, 1)
    ids = settings.get(name)
    if not isinstance(ids, list) or not ids or not all(type(each) is int for each in ids):
        raise CheckpointError(f"{path}: {name} is {ids!r:.80}, not a list of layers of the target")
    return tuple(each + added for each in ids)


def _layers(settings: Mapping[str, Any], path: Path) -> tuple[BlockLayer, ...]:
    count = number_of(settings, "num_hidden_layers", path, 1)
    types = settings.get("layer_types") or ["full_attention"] * count
    known = {"full_attention", _SLIDING}
    if not isinstance(types, list) or len(types) != count or not known.issuperset(types):
        raise CheckpointError(f"{path}: layer_types is {types!r:.80}, not a type for each of {count} layers")
    said = next((bool(settings[name]) for name in _CAUSAL if settings.get(name) is not None), None)
    if settings.get("sliding_window_non_causal"):
        said = bool(said)
    window = number_of(settings, "sliding_window", path, 1) if _SLIDING in types else None
    full = BlockLayer(bool(said))
    sliding = BlockLayer(True if said is None else said, window)
    return tuple(sliding if each == _SLIDING else full for each in types)
