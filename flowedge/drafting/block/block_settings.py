"""What the config.json of a block head asks for, in each of its published layouts. Imports no torch.

- DFlash (arXiv 2602.06036) and JetSpec (2606.18394): "DFlashDraftModel", settings in `dflash_config`.
- DFlash2: "DFlash2DraftModel", settings as of DFlash.
- DSpark (arXiv 2607.05147): "Qwen3DSparkModel", settings at the top.
- P-EAGLE (arXiv 2602.01469): the settings of an EAGLE-3 head, and a mask token.
- All in the layout of speculators: `speculators_model_type` "dflash", "dflash2", "dspark" or "peagle".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.drafting.heads.head_settings import (
    KIND_KEY,
    PARALLEL,
    Eagle3Wiring,
    check_neutral,
    number_of,
)
from flowedge.models.taps import Taps, check_taps

DFLASH, DFLASH2, DSPARK = "DFlashDraftModel", "DFlash2DraftModel", "Qwen3DSparkModel"
PEAGLE = "P-EAGLE"  # whose config names the architecture of another head
OF_DFLASH = "dflash_config"
TARGET_LAYERS = "target_layer_ids"  # of the layers whose outputs are read
_KINDS = {"dflash": DFLASH, "dflash2": DFLASH2, "dspark": DSPARK, "peagle": PEAGLE}  # of speculators
_INPUT_LAYERS = "aux_hidden_state_layer_ids"  # of the layers whose inputs are read, in speculators
_MASKS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
_CAUSAL = ("causal_head", "is_causal", "causal")  # of all layers; without one, windowed layers are causal
_SLIDING = "sliding_attention"
_PASSES = "pass_depths"  # of heads that were trained with tokens of a path in their blocks
_SOFTCAP = "final_logit_softcapping"
_PARALLEL_DEPTHS = 8  # of a P-EAGLE head that does not say; the default of its trainers
# Settings that would change what is computed, and the values with which they do not. None is one for all.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "markov_head_type": ("vanilla",),
    "target_hidden_size": (),
    "draft_adapter_rank": (0,),
    "projector_type": ("dflash", "dspark"),
    "attention_sink_bias": (False,),
    "logit_scale": (1,),
    "output_multiplier": (1,),
    "is_neox_style": (True,),
    "use_swa": (False,),
}
_OF_DFLASH2: dict[str, tuple[object, ...]] = {"conv_kernel_size": (), "selector_rank": ()}


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
class Convolution:
    """What DFlash2 convolves: `rows`, the row itself included; `group`: channels that share an addition."""

    rows: int
    group: int


@dataclass(frozen=True)
class Selection:
    """How DFlash2 selects tokens: among so many `candidates`, by vectors of `rank` numbers."""

    rank: int
    candidates: int


@dataclass(frozen=True)
class BlockWiring:
    """How a block head is wired.

    Attributes:
        size: the rows of a block: the last token of the text, then mask tokens; in P-EAGLE mask tokens alone.
        mask_token: its id among the target's tokens.
        taps: the target's layers whose inputs the head reads; see `tapped` for P-EAGLE.
        layers: what rows see in each of the head's layers.
        shifted: whether the row of a token predicts the token after it, and not the one in its own place.
        markov_rank: of the bias that a token adds to the logits of the next token; 0 for none.
        draft_vocab: tokens of its own vocabulary; None where it proposes all of the target's.
        convolution, selection: of DFlash2; None for others.
        embedding_scale: a factor on the target's embeddings.
        softcap: the bound of its logits; None for none.
        pass_depths: after how many tokens of a path a head whose rows see no later row predicts again, with
            these tokens in the block; None for other heads.
        eagle: of P-EAGLE, how the rows of its text are wired; None for heads whose text has no rows.
    """

    size: int
    mask_token: int
    taps: Taps
    layers: tuple[BlockLayer, ...]
    shifted: bool = False
    markov_rank: int = 0
    draft_vocab: int | None = None
    convolution: Convolution | None = None
    selection: Selection | None = None
    embedding_scale: float = 1.0
    softcap: float | None = None
    pass_depths: int | None = None
    eagle: Eagle3Wiring | None = None

    @property
    def only_drafts(self) -> bool:
        """Whether heads of this kind, P-EAGLE and DFlash2, are neither trained nor priced in emulations."""
        return self.eagle is not None or self.selection is not None

    @property
    def depths(self) -> int:
        """How many tokens a block predicts behind the last token of the text."""
        if self.eagle is not None:
            return self.size + 1  # the last row of the text predicts the first
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
        both = {**settings, **own}
        masks = [name for name in _MASKS if both.get(name) is not None]
        mask = number_of(both, masks[0] if masks else _MASKS[0], path, 0)
        if kind == PEAGLE:
            return cls._of_parallel(settings, mask, path)
        neutral = _NEUTRAL if kind == DFLASH2 else _NEUTRAL | _OF_DFLASH2
        check_neutral(settings, neutral, path, "")
        check_neutral(own, neutral, path, f"{OF_DFLASH}.")
        size = number_of(both, "block_size", path, 2)
        shifted = both.get("sample_from_anchor", both.get("draft_shift"))
        if shifted is None:
            shifted = kind == DSPARK and KIND_KEY not in settings
        if kind == DFLASH2 and KIND_KEY in settings:
            both = {"sliding_window_non_causal": True} | both
        own_vocab = settings.get("draft_vocab_size") if KIND_KEY in settings else None
        if own_vocab in (None, settings.get("vocab_size")):
            own_vocab = None
        else:
            number_of(settings, "draft_vocab_size", path, 1)
        convolution, selection = _of_dflash2(both, size, path) if kind == DFLASH2 else (None, None)
        layers = _layers(both, path)
        return cls(
            size,
            mask,
            _taps(both, path),
            layers,
            bool(shifted),
            number_of(both, "markov_rank", path, 0) if both.get("markov_rank") else 0,
            own_vocab,
            convolution,
            selection,
            _positive(both, "input_embedding_scale", path) or 1.0,
            _positive(both, _SOFTCAP, path),
            _pass_depths(both, layers, 0 if shifted or convolution else size - 1, path),
        )

    @classmethod
    def _of_parallel(cls, settings: Mapping[str, Any], mask: int, path: Path) -> BlockWiring:
        """Read the settings of a P-EAGLE head."""
        eagle = Eagle3Wiring.of({name: each for name, each in settings.items() if name not in PARALLEL}, path)
        layers = _layers({**settings, "is_causal": True}, path)
        return cls(_parallel_depths(settings, path) - 1, mask, eagle.layers or (), layers, eagle=eagle)

    def tapped(self, num_layers: int, path: Path) -> Taps:
        """Return the layers whose inputs the head reads, of a target with so many layers.

        Raises:
            BadRequestError: as of Eagle3Wiring.
            CheckpointError: when the config names layers that the target has not.
        """
        if self.eagle is not None:
            return self.eagle.tapped(num_layers, path)
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
        passes = {} if self.pass_depths in (None, self.depths) else {_PASSES: self.pass_depths}
        return {"architectures": [DFLASH], "block_size": self.size, OF_DFLASH: layers | causal | passes}


def is_block_config(settings: Mapping[str, Any]) -> bool:
    """Return whether a config.json is that of a block head, of a layout that is known or another."""
    named = settings.get("architectures")
    classes = [each for each in named if isinstance(each, str)] if isinstance(named, list) else []
    return (
        OF_DFLASH in settings
        or settings.get(KIND_KEY) in _KINDS
        or any("DFlash" in each or "DSpark" in each for each in classes)
        or _is_parallel(settings)
    )


def _is_parallel(settings: Mapping[str, Any]) -> bool:
    """Return whether a config without another sign of a block head is that of a P-EAGLE head.

    A language model that predicts several tokens (PARD) has a mask token too, but no draft vocabulary.
    """
    if KIND_KEY in settings:
        return bool(settings[KIND_KEY] == "peagle")
    told = any(settings.get(name) is not None and settings[name] is not False for name in PARALLEL)
    return settings.get("ptd_token_id") is not None or ("draft_vocab_size" in settings and told)


def _kind(settings: Mapping[str, Any], path: Path) -> str:
    spoken = settings.get(KIND_KEY)
    if spoken in _KINDS:
        return _KINDS[spoken]
    named = settings.get("architectures") or [DFLASH]
    if named in ([DFLASH], [DFLASH2], [DSPARK]):
        return str(named[0])
    if OF_DFLASH not in settings and _is_parallel(settings):
        return PEAGLE
    raise CheckpointError(
        f"{path}: architectures is {named!r:.80}; of block heads {DFLASH}, {DFLASH2} and {DSPARK} are known"
    )


def _of_dflash2(settings: Mapping[str, Any], size: int, path: Path) -> tuple[Convolution, Selection]:
    rows, group = (number_of(settings, f"conv_{name}_size", path, 1) for name in ("kernel", "group"))
    if rows > size:
        raise CheckpointError(f"{path}: conv_kernel_size is {rows}, but a block has {size} rows")
    hidden = number_of(settings, "hidden_size", path, 1)
    if hidden % group:
        raise CheckpointError(f"{path}: conv_group_size is {group}, which does not divide {hidden} channels")
    rank, candidates = (number_of(settings, f"selector_{name}", path, 1) for name in ("rank", "top_k"))
    return Convolution(rows, group), Selection(rank, candidates)


def _parallel_depths(settings: Mapping[str, Any], path: Path) -> int:
    """How many tokens a P-EAGLE head was trained to predict, as far as its config says."""
    if settings.get("num_depths") is not None:
        return number_of(settings, "num_depths", path, 2)
    spoken = settings.get("speculators_config")
    methods = spoken.get("proposal_methods") if isinstance(spoken, dict) else None
    for method in methods if isinstance(methods, list) else ():
        if isinstance(method, dict) and method.get("speculative_tokens") is not None:
            return number_of(method, "speculative_tokens", path, 2)
    return _PARALLEL_DEPTHS


def _pass_depths(
    settings: Mapping[str, Any], layers: Sequence[BlockLayer], depths: int, path: Path
) -> int | None:
    """After how many tokens of a path a head predicts again: by default behind the last of its depths."""
    given = settings.get(_PASSES)
    if not depths or not all(layer.causal for layer in layers):
        if given is not None:
            raise CheckpointError(
                f"{path}: {_PASSES} is {given!r:.80}, but rows of its blocks see later rows"
            )
        return None
    found = depths if given is None else number_of(settings, _PASSES, path, 1)
    if found > depths:
        raise CheckpointError(f"{path}: {_PASSES} is {found}, but a block predicts {depths} tokens")
    return found


def _positive(settings: Mapping[str, Any], name: str, path: Path) -> float | None:
    """Return a setting that is a positive number; None where it is missing or 0."""
    value = settings.get(name)
    if not value:
        return None
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise CheckpointError(f"{path}: {name} is {value!r:.80}, not a positive number")
    return float(value)


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
