"""The sizes of models whose layers differ in their heads, or read more than hidden states: Gemma 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowedge.models.architecture import Architecture
from flowedge.models.families.table import FAMILIES


@dataclass(frozen=True)
class UnlikeLayers:
    """What a plan counts of such a model.

    Attributes:
        heads, head_dim: as in LayerSizes, of most layers.
        intermediate: the mean width of an MLP, or of one expert; experts: how many there are and how many
            compute a row, where an MLP beside them counts as experts; None without a mixture.
        kv_values: the values of keys and values of a row in a layer, on average.
        carried: by layer, values that rows carry into it beside the hidden state.
        token_values: weights of the table of which each token reads a row beside its embedding.
    """

    kv_heads: int
    head_dim: int
    intermediate: int
    experts: tuple[int, int] | None
    kv_values: int
    carried: tuple[int, ...]
    token_values: int

    @classmethod
    def of(cls, config: Any) -> UnlikeLayers | None:
        """Read a config of transformers; None where the layers are alike."""
        family = FAMILIES.get(str(getattr(config, "model_type", "")))
        if family is None or family.key_layers is None:
            return None
        found = Architecture.of(family, config)
        layers, heads, mixture = len(found.key_layers), found.usual_heads, found.experts
        intermediate = sum(map(found.mlp_width, range(layers))) / layers
        experts = None
        if mixture is not None:
            beside = round(intermediate / mixture.intermediate)
            experts, intermediate = (mixture.count + beside, mixture.chosen + beside), mixture.intermediate
        cached = sum(2 * own.count * own.size for own in found.cached_heads(0, layers))
        return cls(
            heads.count,
            heads.size,
            round(intermediate),
            experts,
            -(-cached // layers),
            tuple(map(found.carried_width, range(layers))),
            found.layer_vocab * found.layer_input * layers,
        )
