"""GGUF files of Hugging Face checkpoints, written by the gguf package in the way of llama.cpp's converter.

Run: python -m tests.support.gguf_files FILE.gguf Q4_K (writes the bundled model)
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGUFWriter, TensorNameMap, TokenType, get_tensor_name_map
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES, ExpertGatingFuncType, GGMLQuantizationType
from gguf.quants import quantize
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from flowedge.models.families.parts import key_heads
from flowedge.models.families.table import FAMILIES
from tests.support.k_quants import K_QUANTS

Array = npt.NDArray[Any]
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", *K_QUANTS)
BUNDLED = Path(__file__).parents[2] / "flowedge" / "bundled" / "model"
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "ministral3": "mistral3",
    "mixtral": "llama",
    "granite": "granite",
    "granitemoehybrid": "granitehybrid",
    "nemotron_h": "nemotron_h_moe",
    "smollm3": "smollm3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "glm4_moe_lite": "deepseek2",
    "gpt_oss": "gpt-oss",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "phi3": "phi3",
}
LFM2 = ("lfm2", "lfm2moe")
NEMOTRON = ("nemotron_h", "nemotron_h_moe")
DELTA_NETS = ("qwen35", "qwen35moe")
NEXTN = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head_norm",
    "embed_tokens": "embed_tokens",
    "lm_head": "shared_head_head",
}
GEMMA = ("gemma2", "gemma3", "gemma4")
KEY_LENGTHS = ("gpt-oss", "mistral3", "qwen3", "qwen3moe", *GEMMA, *NEMOTRON, *DELTA_NETS)
STATE_SPACES = ("granitehybrid", *NEMOTRON)
PERMUTED = ("llama", "mistral3", "granite", "granitehybrid", "smollm3")


def write_gguf(
    path: Path,
    model: Path = BUNDLED,
    kind: str = "F32",
    *,
    tokenizer: Path | None = BUNDLED,
    **writer: Any,
) -> Path:
    """Writes the checkpoint in `model`, its matrices as `kind` where their rows are whole blocks.

    `tokenizer` is the directory of the tokenizer to store. `writer` are arguments of GGUFWriter, such as
    `split_max_tensors` for a model in several files.
    """
    config = AutoConfig.from_pretrained(model)
    architecture = architecture_of(config)
    file = GGUFWriter(path, architecture, **writer)
    add_metadata(file, config, architecture)
    if tokenizer is not None:
        add_tokenizer(file, tokenizer)
    names = get_tensor_name_map(_number(architecture), config.num_hidden_layers + 1)
    for name, values in tensors_of(model, config, architecture).items():
        add_tensor(file, _gguf_name(names, name), values, kind)
    finish(file)
    return path


def finish(file: GGUFWriter) -> None:
    """Write all that was added to a file."""
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def architecture_of(config: Any) -> str:
    """The architecture of a file; that of Nemotron-H depends on its layers."""
    name = ARCHITECTURES[config.model_type]
    return name if name != "nemotron_h_moe" or "moe" in config.layer_types else "nemotron_h"


def add_metadata(file: GGUFWriter, config: Any, architecture: str) -> None:
    heads = config.num_attention_heads
    head_size = key_heads(config)[-1].size  # of the last layer, which has no window in a Gemma 4
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    counts = (getattr(config, f"{name}_layers", None) for name in ("mtp_num_hidden", "num_nextn_predict"))
    ahead = max(count or 0 for count in counts)
    file.add_block_count(config.num_hidden_layers + ahead)
    if ahead:
        file.add_nextn_predict_layers(ahead)
    if architecture == "gemma4":
        add_gemma4(file, config)
    elif hasattr(config, "intermediate_size") and architecture != "gpt-oss":
        width = config.intermediate_size
        by_layer = architecture == "nemotron_h"
        file.add_feed_forward_length(
            [width if kind == "mlp" else 0 for kind in config.layer_types] if by_layer else width
        )
    file.add_head_count(heads)
    add_key_heads(file, config, architecture)
    epsilon = FAMILIES[config.model_type].epsilon_field
    file.add_layer_norm_rms_eps(getattr(config, epsilon))
    file.add_vocab_size(config.vocab_size)
    if architecture in KEY_LENGTHS:
        file.add_key_length(head_size)
        file.add_value_length(head_size)
    if window := getattr(config, "sliding_window", None):
        file.add_sliding_window(window)
    add_recurrence(file, config, architecture)
    add_experts(file, config, architecture)
    if architecture.startswith("granite"):
        file.add_attention_scale(config.attention_multiplier)
        file.add_embedding_scale(config.embedding_multiplier)
        file.add_residual_scale(config.residual_multiplier)
        file.add_logit_scale(config.logits_scaling)
    if architecture == "gemma2":
        file.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if getattr(config, "final_logit_softcapping", None):
        file.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture in NEMOTRON:  # which does not rotate
        return
    rope = config.rope_parameters
    if architecture in ("gemma3", "gemma4"):
        file.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    if architecture == "granitehybrid":
        file.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
    add_rope(file, rope, config, config.qk_rope_head_dim if architecture == "deepseek2" else head_size)


def add_recurrence(file: GGUFWriter, config: Any, architecture: str) -> None:
    """Adds the sizes of gated delta nets, or of state spaces."""
    if architecture in DELTA_NETS:
        file.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        file.add_ssm_state_size(config.linear_key_head_dim)
        file.add_ssm_group_count(config.linear_num_key_heads)
        file.add_ssm_time_step_rank(config.linear_num_value_heads)
        file.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    if architecture == "granitehybrid":
        file.add_ssm_conv_kernel(config.mamba_d_conv)
        file.add_ssm_state_size(config.mamba_d_state)
        file.add_ssm_group_count(config.mamba_n_groups)
        file.add_ssm_time_step_rank(config.mamba_n_heads)
        file.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)
    if architecture in NEMOTRON:
        file.add_ssm_conv_kernel(config.conv_kernel)
        file.add_ssm_state_size(config.ssm_state_size)
        file.add_ssm_group_count(config.n_groups)
        file.add_ssm_time_step_rank(config.mamba_num_heads)
        file.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)


def add_experts(file: GGUFWriter, config: Any, architecture: str) -> None:
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        file.add_expert_count(experts)
        file.add_expert_used_count(getattr(config, "top_k_experts", None) or config.num_experts_per_tok)
    sized = ("qwen3moe", "qwen35moe", "lfm2moe", "nemotron_h_moe")
    if architecture in sized or (architecture == "gemma4" and experts):
        file.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture == "deepseek2":
        file.add_expert_feed_forward_length(config.moe_intermediate_size)
        file.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
        file.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
        file.add_expert_shared_count(config.n_shared_experts)
        file.add_expert_weights_norm(config.norm_topk_prob)
        file.add_expert_weights_scale(config.routed_scaling_factor)
    if architecture == "qwen35moe":
        file.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if architecture == "lfm2moe":
        file.add_leading_dense_block_count(config.num_dense_layers)
        file.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    if architecture == "gpt-oss":
        file.add_expert_feed_forward_length(config.intermediate_size)
    if architecture == "granitehybrid":
        file.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    if architecture == "nemotron_h_moe":
        file.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        file.add_expert_shared_count(config.n_shared_experts)
        file.add_expert_weights_norm(config.norm_topk_prob)
        file.add_expert_weights_scale(config.routed_scaling_factor)
        file.add_expert_group_count(config.n_group)


def add_key_heads(file: GGUFWriter, config: Any, architecture: str) -> None:
    by_layer = [own.count for own in key_heads(config)]
    heads = by_layer[0]
    if architecture == "gemma4":
        file.add_head_count_kv(by_layer)
    elif architecture in LFM2:
        file.add_head_count_kv([0 if kind == "conv" else heads for kind in config.layer_types])
        file.add_shortconv_l_cache(config.conv_L_cache)
    elif architecture == "deepseek2":
        file.add_head_count_kv(1)
        file.add_kv_lora_rank(config.kv_lora_rank)
        if config.q_lora_rank is not None:
            file.add_q_lora_rank(config.q_lora_rank)
        file.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
        file.add_value_length(config.kv_lora_rank)
        file.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
        file.add_value_length_mla(config.v_head_dim)
    elif architecture in STATE_SPACES:
        file.add_head_count_kv([heads if kind == "full_attention" else 0 for kind in config.layer_types])
    else:
        file.add_head_count_kv(heads)


def add_gemma4(file: GGUFWriter, config: Any) -> None:
    """Adds what llama.cpp's converter stores of Gemma 4 alone."""
    sizes, shared = key_heads(config), config.num_kv_shared_layers
    own, width = config.num_hidden_layers - shared, config.intermediate_size
    file.add_feed_forward_length(
        [width] * own + [width * 2] * shared if config.use_double_wide_mlp else width
    )
    file.add_shared_kv_layers(shared)
    file.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    file.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    file.add_key_length_swa(sizes[0].size)
    file.add_value_length_swa(sizes[0].size)
    file.add_rope_dimension_count_swa(sizes[0].size)


def add_rope(file: GGUFWriter, rope: dict[str, Any], config: Any, head_size: int) -> None:
    file.add_rope_freq_base(rope["rope_theta"])
    kind = rope["rope_type"]
    if kind == "proportional":
        rotated = int(head_size * rope["partial_rotary_factor"] / 2)
        factors = [1.0] * rotated + [1e30] * (head_size // 2 - rotated)
        file.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
        file.add_rope_dimension_count(head_size)
        return
    file.add_rope_dimension_count(int(head_size * rope.get("partial_rotary_factor", 1.0)))
    if kind in ("linear", "yarn"):
        file.add_string(f"{file.arch}.rope.scaling.type", kind)
        file.add_rope_scaling_factor(rope["factor"])
    if kind in ("yarn", "longrope"):
        file.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "mscale_all_dim" in rope:
        file.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    if "llama_4_scaling_beta" in rope:
        file.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if kind == "longrope":
        for length in ("short", "long"):
            file.add_tensor(
                f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], dtype=np.float32)
            )
    if kind == "llama3":
        file.add_tensor("rope_freqs.weight", llama3_factors(rope, head_size))
    assert kind in ("default", "linear", "yarn", "longrope", "llama3"), config.model_type


def llama3_factors(rope: dict[str, Any], head_size: int) -> Array:
    """The divisors of the frequencies, from transformers' own frequencies."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    settings = {"hidden_size": head_size, "num_attention_heads": 1, "max_position_embeddings": 131072}
    plain = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    found = [
        LlamaRotaryEmbedding(LlamaConfig(**settings, rope_parameters=each)).inv_freq for each in (plain, rope)
    ]
    factors: Array = (found[0] / found[1]).numpy().astype(np.float32)
    return factors


def add_tokenizer(file: GGUFWriter, model: Path, pre: str = "smollm") -> None:
    """Adds a byte-level tokenizer with its merges, special tokens and chat template."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    state = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    special = {entry["content"] for entry in state["added_tokens"]}
    tokens = [tokenizer.convert_ids_to_tokens(index) for index in range(len(tokenizer))]
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre(pre)
    file.add_token_list(tokens)
    file.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    file.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    file.add_bos_token_id(tokenizer.bos_token_id)
    file.add_eos_token_id(tokenizer.eos_token_id)
    file.add_pad_token_id(tokenizer.pad_token_id)
    file.add_add_bos_token(False)
    file.add_chat_template(tokenizer.chat_template)


def tensors_of(model: Path, config: Any, architecture: str) -> dict[str, Array]:
    """The values to store in float32, by the names in transformers."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    found: dict[str, Array] = {}
    ahead = layer_ahead(model, config) if architecture in (*DELTA_NETS, "deepseek2") else {}
    for own, tensor in (loaded.state_dict() | ahead).items():
        if own == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = stored_values(own, tensor.numpy(), config, architecture)
        name = known_name(own, config) if architecture in STATE_SPACES else own
        if name.endswith("kv_b_proj.weight"):
            found |= keys_and_values(name, values, config)
        elif name.endswith("expert_bias"):
            found[f"{name}.bias"] = values
        elif name.endswith("dt_bias"):
            found[name.replace("dt_bias", "dt_proj.bias")] = values
        elif name.endswith("e_score_correction_bias"):
            found[name.replace("_bias", ".bias")] = values
        elif name.endswith(("sinks", "layer_scalar")) or (".experts." in name and architecture == "gemma4"):
            found[f"{name}.weight"] = values
        elif ".experts." in name or name.endswith("gate_up_proj"):
            found |= experts_of(name, values, in_turns=architecture == "gpt-oss")
        else:
            found[name] = values
    return found


def keys_and_values(name: str, values: Array, config: Any) -> dict[str, Array]:
    """What a file has of the matrices of latent attention: those of keys are transposed."""
    by_head = values.reshape(config.num_attention_heads, -1, values.shape[1])
    keys, own = np.split(by_head, [config.qk_nope_head_dim], axis=1)
    return {
        name.replace("kv_b_proj", "k_b_proj"): keys.swapaxes(1, 2),
        name.replace("kv_b_proj", "v_b_proj"): own,
    }


def experts_of(name: str, values: Array, *, in_turns: bool) -> dict[str, Array]:
    """What a file has of transformers' stack `name` of all experts, or of an MLP's gate and values in one."""
    prefix, _, part = name.rpartition(".")
    kind = "bias" if part.endswith("_bias") else "weight"
    if in_turns and kind == "weight":
        values = values.swapaxes(1, 2)
    if not part.startswith("gate_up_proj"):
        return {f"{prefix}.{part.removesuffix('_bias')}.{kind}": values}
    both = (values[:, ::2], values[:, 1::2]) if in_turns else np.split(values, 2, axis=-2)
    return {f"{prefix}.{each}.{kind}": own for each, own in zip(("gate_proj", "up_proj"), both, strict=True)}


def layer_ahead(model: Path, config: Any) -> dict[str, torch.Tensor]:
    """The tensors of the layer that predicts further tokens, which llama.cpp counts behind the others."""
    layer = f"model.layers.{config.num_hidden_layers}."
    found: dict[str, torch.Tensor] = {}
    of_experts: dict[str, list[torch.Tensor]] = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        if not name.startswith(("mtp.", layer)):
            continue
        own = name.replace("mtp.layers.0.", layer)
        part = own.removeprefix(layer).removeprefix("mtp.").removesuffix(".weight").replace(".", "_")
        if (nextn := NEXTN.get(part, part)) in NEXTN.values():
            own = f"blk.{config.num_hidden_layers}.nextn.{nextn}.weight"
        if single := re.fullmatch(r"(.*\.experts)\.\d+\.(.*)\.weight", own):
            of_experts.setdefault(f"{single[1]}.{single[2]}", []).append(tensor.float())
        else:
            found[own] = tensor.float()
    return found | {name: torch.stack(own) for name, own in of_experts.items()}


def stored_values(name: str, values: Array, config: Any, architecture: str) -> Array:
    """The values of a tensor as a file has them."""
    if architecture in PERMUTED and "q_proj" in name:
        values = permuted(values, config.num_attention_heads)
    if architecture in PERMUTED and "k_proj" in name:
        values = permuted(values, config.num_key_value_heads)
    shifted = architecture in ("gemma2", "gemma3", *DELTA_NETS)
    if shifted and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        values = values + 1
    if architecture in DELTA_NETS:
        values = tiled(values, name, config)
    if architecture in (*DELTA_NETS, *LFM2, *STATE_SPACES):
        values = without_axes(values, name)
    if name.endswith(("mamba.A_log", "mamba.D", "mixer.A_log", "mixer.D")):
        return values.reshape(-1, 1)
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        groups = config.n_groups if architecture in NEMOTRON else config.mamba_n_groups
        return values.reshape(groups, -1)
    return values


def known_name(name: str, config: Any) -> str:
    """The name of a tensor of Granite 4 or Nemotron-H as the package's table has it."""
    if config.model_type == "nemotron_h":
        if ".mixer.experts." in name:
            return name.replace(".mixer.", ".mlp.")
        return name.replace("model.", "backbone.")
    mlp = "mlp.shared_expert" if config.num_local_experts else "mlp"
    for own, known in (
        ("block_sparse_moe.experts", "mlp.experts"),
        ("router.weight", "router.layer.weight"),
        ("shared_mlp.input_linear.weight", f"{mlp}.gate_up_proj"),
        ("shared_mlp.output_linear", f"{mlp}.down_proj"),
    ):
        name = name.replace(own, known)
    return name


def tiled(values: Array, name: str, config: Any) -> Array:
    """The heads of values of a gated delta net in the order of llama.cpp, which repeats all keys in a row."""
    part = name.rpartition("linear_attn.")[2].removesuffix(".weight")
    one_of_head, of_values = ("in_proj_a", "in_proj_b", "A_log", "dt_bias"), ("in_proj_z", "out_proj")
    if part not in (*one_of_head, *of_values, "in_proj_qkv", "conv1d"):
        return values
    keys, size = config.linear_num_key_heads, config.linear_value_head_dim
    order = np.arange(config.linear_num_value_heads).reshape(keys, -1).T.reshape(-1)
    if part in one_of_head:
        return values[order]
    rows = (order[:, None] * size + np.arange(size)).reshape(-1)
    if part == "out_proj":
        return values[:, rows]
    before = 0 if part == "in_proj_z" else 2 * keys * config.linear_key_head_dim
    return np.concatenate([values[:before], values[before:][rows]])


def without_axes(values: Array, name: str) -> Array:
    """A tensor of a recurrent layer, or the gate of a shared expert, as a file has it."""
    if name.endswith("A_log"):
        return -np.exp(values)
    if name.endswith(("conv1d.weight", ".conv.conv.weight")):
        return values[:, 0]
    return values[0] if name.endswith("shared_expert_gate.weight") else values


def permuted(values: Array, heads: int) -> Array:
    """The rows of q or k in the order of llama.cpp, which pairs neighbours."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def add_tensor(file: GGUFWriter, name: str, values: Array, kind: str) -> None:
    if values.ndim == 1 or "ffn_gate_inp" in name:
        kind = "F32"
    stored = encoded(np.ascontiguousarray(values), kind)
    if stored is None:
        kind, stored = "F32", values
    file.add_tensor(name, np.ascontiguousarray(stored), raw_dtype=GGMLQuantizationType[kind])


def encoded(values: Array, kind: str) -> Array | None:
    """The stored form; None if the rows are not whole blocks."""
    block = 256 if kind in K_QUANTS else 32 if kind.startswith("Q") else 1
    if values.shape[-1] % block:
        return None
    if kind in K_QUANTS:
        return K_QUANTS[kind](values)
    return quantize(values, GGMLQuantizationType[kind])


def _gguf_name(names: TensorNameMap, name: str) -> str:
    if ".nextn." in name:  # which the package knows of no architecture of these
        return name
    if name.endswith("router.scale"):
        return _gguf_name(names, name.replace("scale", "proj.weight")).replace("weight", "scale")
    if name.endswith("router.per_expert_scale"):
        down = name.replace("router.per_expert_scale", "experts.down_proj.weight")
        return _gguf_name(names, down).replace("weight", "scale")
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def _number(architecture: str) -> MODEL_ARCH:
    return next(number for number, name in MODEL_ARCH_NAMES.items() if name == architecture)


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), kind=sys.argv[2])
