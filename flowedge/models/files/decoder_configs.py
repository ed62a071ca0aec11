"""Configs of families: transformers' base class with the fields and defaults of each family.

transformers' own config classes check activations by name, and so import its model files. Everything else is
done by the base class: reading config.json, checking types, and bringing rotary parameters into one form.
"""

# No postponed annotations: the check of types needs the types themselves.
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_rope_utils import RopeParameters


@strict
class DecoderConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """The fields that all these families have, with Llama's defaults."""

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = False
    rope_parameters: RopeParameters | dict | None = None  # type: ignore[type-arg]
    attention_dropout: int | float | None = 0.0

    def __post_init__(self, **others: Any) -> None:
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        super().__post_init__(**others)  # type: ignore[no-untyped-call]


@strict
class LlamaDecoderConfig(DecoderConfig):  # type: ignore[no-untyped-call]
    """Llama's config."""

    model_type = "llama"

    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pretraining_tp: int | None = 1
    attention_bias: bool = False
    mlp_bias: bool = False
    head_dim: int | None = None

    def __post_init__(self, **others: Any) -> None:
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        super().__post_init__(**others)

    def validate_architecture(self) -> None:
        """Check that the heads divide the width.

        Raises:
            ValueError: when they do not.
        """
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size is {self.hidden_size}, not a multiple of num_attention_heads, which is "
                f"{self.num_attention_heads}"
            )


@strict
class MistralDecoderConfig(DecoderConfig):  # type: ignore[no-untyped-call]
    """Mistral's config."""

    model_type = "mistral"

    intermediate_size: int = 14336
    num_key_value_heads: int = 8
    head_dim: int | None = None
    max_position_embeddings: int = 4096 * 32
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    sliding_window: int | None = 4096
    attention_dropout: float | int = 0.0

    def __post_init__(self, **others: Any) -> None:
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        super().__post_init__(**others)


@strict
class Qwen2DecoderConfig(DecoderConfig):  # type: ignore[no-untyped-call]
    """Qwen2's config."""

    model_type = "qwen2"

    vocab_size: int = 151936
    intermediate_size: int = 22016
    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    attention_dropout: float | int = 0.0

    def __post_init__(self, **others: Any) -> None:
        if not self.use_sliding_window:
            self.sliding_window = None
        if self.layer_types is None:
            first = self.num_hidden_layers if self.sliding_window is None else self.max_window_layers
            self.layer_types = [
                "sliding_attention" if index >= first else "full_attention"
                for index in range(self.num_hidden_layers)
            ]
        super().__post_init__(**others)


@strict
class Qwen3DecoderConfig(Qwen2DecoderConfig):  # type: ignore[no-untyped-call]
    """Qwen3's config."""

    model_type = "qwen3"

    head_dim: int = 128
    attention_bias: bool = False
