"""What the config of a GGUF model is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.gguf_families.architectures import ROPE_FACTORS, TOKEN_EMBEDDING
from flowedge.models.gguf_families.metadata import Metadata
from flowedge.models.gguf_families.rope import rope_parameters

_SIZES_BY_LAYER = frozenset({"granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"})


@dataclass(frozen=True)
class ModelFacts:
    """Everything that a config is made from.

    Attributes:
        shapes: the shape of each stored tensor, by its name in the file.
        factors: (name of a tensor of rotary factors) -> its values; None if there is no tensor of the name.
    """

    metadata: Metadata
    shapes: Mapping[str, tuple[int, ...]]
    factors: Callable[[str], Sequence[float] | None]

    @property
    def head_size(self) -> int:
        metadata = self.metadata
        heads = metadata.count(".attention.head_count")
        default = metadata.count(".embedding_length") // heads
        if metadata.architecture in ("llama", "smollm3") and not metadata.has(".attention.key_length"):
            default = metadata.count(".rope.dimension_count", default)
        return metadata.count(".attention.key_length", default)

    @property
    def kv_heads(self) -> int:
        """The key heads of layers with attention."""
        return self.of_layers(".attention.head_count_kv", self.metadata.count(".attention.head_count"))

    def of_layers(self, key: str, default: int | None = None) -> int:
        """An integer above 0 that some files have for each layer, and 0 for layers of another kind."""
        metadata = self.metadata
        stored = metadata.values.get(metadata.architecture + key)
        if metadata.architecture == "gemma4":
            return self.by_layer(key)[0]
        if metadata.architecture not in _SIZES_BY_LAYER or not isinstance(stored, list):
            return metadata.count(key, default)
        counts = {value for value in stored if type(value) is int and value}
        if len(counts) != 1:
            found = str(stored)[:80]
            raise CheckpointError(f"{metadata.architecture}{key} is {found}, not one number and zeros")
        return Metadata({key: counts.pop()}, "").count(key)

    def by_layer(self, key: str) -> list[int]:
        """A count for each layer, of which some files have a list and others one for all.

        Raises:
            CheckpointError: when it is neither.
        """
        metadata, layers = self.metadata, self.metadata.layers
        stored = metadata.values.get(metadata.architecture + key)
        if not isinstance(stored, list):
            return [metadata.count(key)] * layers
        if len(stored) != layers:
            name = f"{metadata.architecture}{key}"
            raise CheckpointError(f"{name} has {len(stored)} entries for {layers} layers")
        return [Metadata({key: value}, "").count(key) for value in stored]

    @property
    def vocab_size(self) -> int:
        shape = self.shapes.get(TOKEN_EMBEDDING)
        if shape is None or len(shape) != 2:
            raise CheckpointError(f"tensor {TOKEN_EMBEDDING} is missing or no matrix")
        return shape[0]

    @property
    def rope(self) -> dict[str, Any]:
        return rope_parameters(self.metadata, self.factors(ROPE_FACTORS), self.head_size)

    @property
    def expert_sizes(self) -> dict[str, Any]:
        """The fields of a config that most families with experts have."""
        metadata = self.metadata
        return {
            "num_experts": metadata.count(".expert_count"),
            "num_experts_per_tok": metadata.count(".expert_used_count"),
            "moe_intermediate_size": metadata.count(".expert_feed_forward_length"),
        }

    @property
    def layer_types(self) -> dict[str, Any]:
        """The field `layer_types`; no field if the file does not store which layers have a window."""
        metadata = self.metadata
        windowed = metadata.values.get(f"{metadata.architecture}.attention.sliding_window_pattern")
        if windowed is None:
            return {}
        if type(windowed) is int and windowed > 0:  # the last of so many layers has no window
            windowed = [bool((index + 1) % windowed) for index in range(metadata.layers)]
        if not isinstance(windowed, list) or not all(isinstance(value, bool) for value in windowed):
            raise CheckpointError(
                "sliding_window_pattern is not supported unless it is a count or a bool for each layer"
            )
        return {"layer_types": ["sliding_attention" if value else "full_attention" for value in windowed]}

    def has_bias(self, part: str) -> bool:
        """Return whether the first layer's module `part` has a bias."""
        return f"blk.0.{part}.bias" in self.shapes
