"""transformers' own model with the weights of GGUF files, read independently of our reader.

The files are read and dequantised by the gguf package, whose table of names maps the modules' parameters to
tensors. The whole model is read at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGUFReader, ReaderTensor, dequantize, get_tensor_name_map
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES

from flowedge.core.arrays import IntArray
from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.families.parts import DeltaNet, Recurrence

Values = npt.NDArray[np.float32]

# Ends of parameters' names that a file has otherwise.
_STORED_ENDS = {
    ".dt_bias": ".dt_proj.bias",
    ".expert_bias": ".expert_bias.bias",
    ".e_score_correction_bias": ".e_score_correction.bias",
    ".sinks": ".sinks.weight",
    ".layer_scalar": ".layer_scalar.weight",
}
_SCALES = re.compile(r"model\.layers\.(\d+)\.router\.(scale|per_expert_scale)")  # of Gemma 4's routers
# Architectures that store the rows of q and k in pairs.
_INTERLEAVED = ("llama", "granite", "granitehybrid", "mistral3", "smollm3")


def load_gguf_model(checkpoint: Checkpoint, dtype: torch.dtype, attention: str) -> Any:
    """The causal LM of a checkpoint in GGUF files, on the CPU.

    Args:
        dtype: the dtype of all weights.
        attention: transformers' name of the attention function.

    Raises:
        CheckpointError: when the files lack the tensor of a parameter.
    """
    tensors: dict[str, ReaderTensor] = {
        tensor.name: tensor for path in checkpoint.gguf for tensor in GGUFReader(path).tensors
    }
    causal_lm, config = checkpoint.family.causal_lm, checkpoint.transformers_config
    with torch.device("meta"):
        names = list(causal_lm(config).state_dict())
    weights = dict(_weights(checkpoint, names, tensors, dtype))
    return causal_lm.from_pretrained(
        None, config=config, state_dict=weights, dtype=dtype, attn_implementation=attention
    )


def _weights(
    checkpoint: Checkpoint, names: list[str], tensors: Mapping[str, ReaderTensor], dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    config = checkpoint.config
    architecture = str(config.gguf_architecture)
    number = next(number for number, name in MODEL_ARCH_NAMES.items() if name == architecture)
    stored_names = get_tensor_name_map(MODEL_ARCH(number), int(config.num_hidden_layers))

    def read(path: str) -> Values:
        end = next((end for end in _STORED_ENDS if path.endswith(end)), "")
        known = path.removesuffix(end) + _STORED_ENDS.get(end, "")
        if (scaled := _SCALES.fullmatch(path)) is not None:
            part = "ffn_gate_inp" if scaled[2] == "scale" else "ffn_down_exps"
            found = tensors.get(f"blk.{scaled[1]}.{part}.scale")
            if found is not None:
                return dequantize(found.data, found.tensor_type)
        stored = stored_names.get_name(known, try_suffixes=(".weight", ".bias"))
        if stored is None or stored not in tensors:
            raise CheckpointError(f"{checkpoint.place}: no tensor of {path} (in GGUF {stored})")
        return dequantize(tensors[stored].data, tensors[stored].tensor_type)

    for name in names:
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith(".kv_b_proj.weight"):
            values = _keys_and_values(name, read)
            yield name, torch.from_numpy(values).to(dtype)
            continue
        own = _table_name(name, shared=checkpoint.architecture.experts is not None)
        if ".experts." in own and architecture == "gemma4":
            values = read(f"{name}.weight")
        elif ".experts." in own or own.endswith("gate_up_proj"):
            values = _stacked(own, read, in_turns=checkpoint.family.experts_in_turns)
        else:
            values = read(own)
        yield name, torch.from_numpy(_restored(values, name, checkpoint)).to(dtype)


def _keys_and_values(name: str, read: Callable[[str], Values]) -> Values:
    """The weight `name` of latent attention, which a file has as two stacks with a matrix for each head."""
    keys, values = (read(name.replace(".kv_b_proj.", f".{part}_proj.")) for part in ("k_b", "v_b"))
    return np.concatenate((keys.swapaxes(1, 2), values), axis=1).reshape(-1, values.shape[2])


def _stacked(name: str, read: Callable[[str], Values], *, in_turns: bool) -> Values:
    """The stack `name` of transformers' experts, or of one MLP's projections; `in_turns` as of experts_of."""
    prefix, _, part = name.rpartition(".")
    kind = "bias" if part.endswith("_bias") else "weight"
    names = ("gate_proj", "up_proj") if part.startswith("gate_up_proj") else (part.removesuffix("_bias"),)
    values = [read(f"{prefix}.{each}.{kind}") for each in names]
    if not in_turns:
        return np.concatenate(values, axis=-2)
    stacked = np.stack(values, axis=2).reshape(len(values[0]), -1, *values[0].shape[2:])
    return np.ascontiguousarray(stacked.swapaxes(1, 2)) if kind == "weight" else stacked


def _table_name(name: str, *, shared: bool) -> str:
    """The name of a parameter with the words that the package's table has for it.

    Granite 4 has an MLP beside the experts, or in their place. All but the experts of Nemotron-H has other
    first words.

    Args:
        shared: whether the model has experts.
    """
    mlp = ".mlp.shared_expert." if shared else ".mlp."
    name = name.replace(".block_sparse_moe.experts.", ".mlp.experts.")
    name = name.replace(".block_sparse_moe.router.", ".block_sparse_moe.router.layer.")
    name = name.replace(".shared_mlp.input_linear.weight", f"{mlp}gate_up_proj")
    name = name.replace(".shared_mlp.output_linear.", f"{mlp}down_proj.")
    if ".mixer.experts." in name:
        return name.replace(".mixer.", ".mlp.")
    return re.sub(r"^model\.(layers\.\d+\.(mixer|norm)\.|embeddings\.|norm_f\.)", r"backbone.\1", name)


def _restored(values: Values, name: str, checkpoint: Checkpoint) -> Values:
    """The values as transformers has them: halves of rotated rows apart, norms of some families around 0."""
    config, recurrence = checkpoint.config, checkpoint.architecture.recurrence
    architecture = str(config.gguf_architecture)
    if architecture.startswith("qwen35"):
        return _restored_delta_net(values, name, recurrence)
    if architecture in ("gemma2", "gemma3") and name.endswith("norm.weight"):
        return values - 1
    if name.endswith((".conv.conv.weight", ".mamba.conv1d.weight", ".mixer.conv1d.weight")):
        return np.array(values[:, None])
    if re.search(r"\.(mamba|mixer)\.(A_log|D|norm\.weight)$", name):
        return np.array((np.log(-values) if name.endswith("A_log") else values).reshape(-1))
    heads = {"q_proj": checkpoint.architecture.heads, "k_proj": checkpoint.architecture.kv_heads}
    if architecture in _INTERLEAVED and (found := heads.get(name.split(".")[-2])):
        per_head = values.reshape(found, values.shape[0] // found, *values.shape[1:])
        return np.concatenate([per_head[:, 0::2], per_head[:, 1::2]], axis=1).reshape(values.shape)
    return np.array(values)


def grouped_order(net: Recurrence | None, module: str) -> IntArray | None:
    """Where transformers' rows of a module of a gated delta net are in a GGUF file; None for the same order.

    In transformers, heads of values that share a key head lie side by side. Of `out_proj`, the columns.
    """
    if not isinstance(net, DeltaNet) or not net.tiled:
        return None
    heads: IntArray = np.arange(net.value_heads).reshape(-1, net.key_heads).T.reshape(-1)
    if module in ("in_proj_a", "in_proj_b", "dt_bias", "A_log"):
        return heads
    values: IntArray = (heads[:, None] * net.value_size + np.arange(net.value_size)).reshape(-1)
    if module in ("in_proj_z", "out_proj"):
        return values
    keys = net.convolved - values.size
    return np.append(np.arange(keys), keys + values) if module in ("in_proj_qkv", "conv1d") else None


def _restored_delta_net(values: Values, name: str, net: Recurrence | None) -> Values:
    """The values of Qwen 3.5: heads of values in transformers' order, and no axis left out."""
    module = name.rpartition("linear_attn.")[2].removesuffix(".weight")
    order = grouped_order(net, module)
    if order is not None:
        values = values[:, order] if module == "out_proj" else values[order]
    if name.endswith("norm.weight") and module != "norm":
        values = values - 1
    elif name.endswith("shared_expert_gate.weight"):
        values = values.reshape(1, -1)
    elif module == "A_log":
        values = np.log(-values)
    elif module == "conv1d":
        values = values[:, None]
    return np.array(values)
