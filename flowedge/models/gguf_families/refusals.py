"""Files that hold no model, and metadata of computations that the architecture's layers do not have.

llama.cpp reads these keys. A file with another value than the neutral one is another model than the layers
of its architecture compute, so the file is refused instead of giving wrong answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowedge.core.errors import CheckpointError
from flowedge.models.gguf_families.metadata import Metadata, Value

# General type of a file -> what the file holds instead of a model, and what to do.
_OTHER_FILES = {
    "adapter": "a LoRA adapter; merge it into its model and give the file of the merged model",
    "imatrix": "an importance matrix, which quantisers use; give the file of the model",
    "mmproj": "the vision or audio part of a multimodal model; give the file of the text model",
}
_GRANITE = frozenset({"granite", "granitehybrid"})
_MISTRAL3 = frozenset({"mistral3"})
_QWEN35 = frozenset({"qwen35", "qwen35moe"})
_NEMOTRON_MOE = frozenset({"nemotron_h_moe"})
_GEMMA = frozenset({"gemma2", "gemma3", "gemma4"})
_DEEPSEEK2 = frozenset({"deepseek2"})
_NOBODY: frozenset[str] = frozenset()
# Key -> the values that change nothing, and the architectures whose config reads the key.
_NEUTRAL: dict[str, tuple[tuple[Value, ...], frozenset[str]]] = {
    ".attention.causal": ((True,), _NOBODY),
    ".attention.clamp_kqv": ((0,), _NOBODY),
    ".attention.max_alibi_bias": ((0,), _NOBODY),
    ".attention.output_scale": ((0, 1), _NOBODY),
    ".attention.scale": ((0,), _GRANITE),
    ".attention.shared_kv_layers": ((0,), frozenset({"gemma4"})),
    ".attention.temperature_length": ((0,), _NOBODY),
    ".attention.temperature_scale": ((0,), _MISTRAL3),
    ".attn_logit_softcapping": ((0,), frozenset({"gemma2"})),
    ".embedding_scale": ((0, 1), _GRANITE),
    ".expert_gating_func": ((0, 1), frozenset({"lfm2moe"}) | _NEMOTRON_MOE | _DEEPSEEK2),
    ".expert_group_count": ((0, 1), _NOBODY),
    ".expert_shared_count": ((0,), _QWEN35 | _NEMOTRON_MOE | _DEEPSEEK2),
    ".expert_weights_norm": ((True,), _NEMOTRON_MOE | _DEEPSEEK2),
    ".expert_weights_scale": ((0, 1), _NEMOTRON_MOE | _DEEPSEEK2),
    ".final_logit_softcapping": ((0,), _GEMMA),
    ".logit_scale": ((0, 1), _GRANITE),
    ".moe_latent_size": ((0,), _NOBODY),
    ".nextn_predict_layers": ((0,), _QWEN35 | _NEMOTRON_MOE | _DEEPSEEK2),
    ".residual_scale": ((0, 1), _GRANITE),
    ".rope.scaling.alpha": ((0, 1), _NOBODY),
    ".rope.scaling.attn_factor": ((0, 1), frozenset({"phi3"})),
    ".rope.scaling.yarn_attn_factor": ((1,), _NOBODY),
    ".rope.scaling.yarn_ext_factor": ((-1, 1), _NOBODY),
    ".rope.scaling.yarn_log_multiplier": ((0,), _MISTRAL3),
    ".router_logit_softcapping": ((0,), _NOBODY),
    ".use_parallel_residual": ((False,), _NOBODY),
}


def check_holds_model(values: Mapping[str, Value]) -> None:
    """Check that a file holds a model.

    Args:
        values: the file's metadata.

    Raises:
        CheckpointError: when the file holds an adapter, an importance matrix or a projector.
    """
    kind = values.get("general.type", "model")
    if values.get("general.architecture") == "clip":
        kind = "mmproj"
    elif "adapter.type" in values:
        kind = "adapter"
    elif "imatrix.datasets" in values:
        kind = "imatrix"
    if isinstance(kind, str) and kind in _OTHER_FILES:
        raise CheckpointError(f"it holds no model but {_OTHER_FILES[kind]}")


def check_computation(metadata: Metadata) -> None:
    """Check that no key asks for a computation that the architecture's layers do not have.

    Raises:
        CheckpointError: when a key has a value other than the neutral one.
    """
    architecture = metadata.architecture
    for key, (neutral, readers) in _NEUTRAL.items():
        value = metadata.values.get(architecture + key)
        if value is None or architecture in readers:
            continue
        if value not in neutral:
            raise CheckpointError(
                f"{architecture}{key} is {str(value)[:80]}, which FlowEdge's layers of this architecture do "
                "not apply, so the model would be another one"
            )
    # llama.cpp takes this key as the switch of Granite's rotary positions.
    if architecture == "granite" and metadata.values.get("granite.rope.scaling.finetuned") is False:
        raise CheckpointError("granite.rope.scaling.finetuned is False: a Granite without rotary positions")
