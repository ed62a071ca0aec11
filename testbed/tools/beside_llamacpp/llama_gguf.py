"""GGUF files of a Llama checkpoint that llama.cpp can time; they hold no tokenizer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType

from flowedge.core.errors import BadRequestError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from testbed.tools.beside_llamacpp.installation import LlamaCpp

PLAIN = {"BF16": LlamaFileType.MOSTLY_BF16, "F32": LlamaFileType.ALL_F32}
_PARTS = {  # of a layer: the name in GGUF, by the name in safetensors
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_of(checkpoint: Checkpoint, kind: str, directory: Path, llamacpp: LlamaCpp) -> Path:
    """Return the path of a GGUF file of the checkpoint in `directory`, which is made if it does not exist.

    Args:
        kind: "BF16" or "F32", or a type of llama-quantize such as "Q4_0", which is made from BF16.
    """
    path = directory / f"{kind}.gguf"
    if path.is_file():
        return path
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f"{kind}.{os.getpid()}.partial"
    if kind in PLAIN:
        _write(checkpoint, kind, partial)
    else:
        llamacpp.quantize(gguf_of(checkpoint, "BF16", directory, llamacpp), partial, kind)
    partial.replace(path)
    return path


def _write(checkpoint: Checkpoint, kind: str, path: Path) -> None:
    """Write a GGUF file; one tensor is in memory at a time.

    Raises:
        BadRequestError: when the checkpoint is not a Llama.
    """
    config = checkpoint.config
    if config.model_type != "llama":
        raise BadRequestError(
            f"{checkpoint.place} is a {config.model_type} model; give a llama model, or none"
        )
    heads = int(config.num_attention_heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    file = GGUFWriter(path, "llama")
    file.add_file_type(PLAIN[kind])
    file.add_vocab_size(config.vocab_size)
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_block_count(config.num_hidden_layers)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_rope_dimension_count(head_dim)
    file.add_rope_freq_base(config.rope_parameters["rope_theta"])
    file.add_tokenizer_model("no_vocab")
    names = list(_names(checkpoint))
    for source, name in names:
        form = _form(kind, checkpoint.shape(source))
        size = 2 if form == GGMLQuantizationType.BF16 else 4
        shape = checkpoint.shape(source)
        file.add_tensor_info(name, shape, np.dtype(np.float32), int(np.prod(shape)) * size, form)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_ti_data_to_file()
    for source, _ in names:
        weight = checkpoint.tensor(source)
        if ".q_proj." in source or ".k_proj." in source:
            weight = _neighbouring_pairs(weight, head_dim)
        file.write_tensor_data(_array(weight, _form(kind, checkpoint.shape(source))))
    file.close()


def _names(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Yield the name of each tensor in the checkpoint and in the GGUF file."""
    yield "model.embed_tokens.weight", "token_embd.weight"
    if not checkpoint.config.tie_word_embeddings:
        yield "lm_head.weight", "output.weight"
    yield "model.norm.weight", "output_norm.weight"
    for layer in range(checkpoint.config.num_hidden_layers):
        for source, name in _PARTS.items():
            yield f"model.layers.{layer}.{source}.weight", f"blk.{layer}.{name}.weight"


def _form(kind: str, shape: tuple[int, ...]) -> GGMLQuantizationType:
    is_vector = len(shape) == 1  # which llama.cpp takes in float32 alone
    return GGMLQuantizationType.F32 if is_vector or kind == "F32" else GGMLQuantizationType.BF16


def _neighbouring_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Put the rows of a query or key weight [heads * head_dim, hidden] in the order of GGUF's llama.

    There the two values that a rotation mixes are neighbours; in safetensors they are half a head apart.
    """
    halves = weight.view(-1, 2, head_dim // 2, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def _array(weight: torch.Tensor, form: GGMLQuantizationType) -> np.ndarray:
    if form == GGMLQuantizationType.F32:
        return weight.float().contiguous().numpy()
    return weight.to(torch.bfloat16).contiguous().view(torch.int16).numpy()
