"""The folder of a published draft head. Readers raise CheckpointError for files that they cannot use."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from flowedge.core.errors import CheckpointError
from flowedge.drafting.heads.draft_head import DraftHead
from flowedge.drafting.heads.head_settings import CONFIG_NAME
from flowedge.models.architecture import Architecture
from flowedge.models.families.table import family_of
from flowedge.models.files.config_numbers import check_values
from flowedge.models.files.config_support import check_config
from flowedge.models.files.decoder_configs import LlamaDecoderConfig
from flowedge.models.files.weight_file import open_weights
from flowedge.text.json_object import errors_of_file

SAFETENSORS_NAME = "model.safetensors"
BIN_NAME = "pytorch_model.bin"
EMBEDDING_KEY = "embed_tokens.weight"
UNUSED_SETTINGS = ("bias", "architectures", "model_type")
IGNORED_SUFFIX = "rotary_emb.inv_freq"  # a derived buffer in older checkpoints
IGNORED_PREFIX = "verifier_"  # copies of the target's tensors in checkpoints of speculators


def llama_config(
    settings: dict[str, Any], directory: Path, kind: str, *, one_layer: bool = True
) -> LlamaDecoderConfig:
    """The config of a head's layers; `kind` is the name of the head in errors."""
    layers = settings.get("num_hidden_layers", 1)
    if one_layer and layers != 1:
        raise CheckpointError(f"{directory} is no {kind} head: num_hidden_layers is {layers}, expected 1")
    known = {name: value for name, value in settings.items() if name not in UNUSED_SETTINGS}
    path = directory / CONFIG_NAME
    check_values(settings, path)
    with errors_of_file(path, "is not a usable Llama config"):
        config = LlamaDecoderConfig(**known)
        check_config(family_of("llama"), config)
        Architecture.of(family_of("llama"), config)
    return config


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """A head's tensors by name, without derived buffers and copies of the target's."""
    path = directory / SAFETENSORS_NAME
    if not path.exists():
        path = directory / BIN_NAME
        if not path.exists():
            raise CheckpointError(f"{directory} has neither {SAFETENSORS_NAME} nor {BIN_NAME}")
        warnings.warn(f"{path} is a pickle; a {SAFETENSORS_NAME} is safer to share", stacklevel=3)
    stored = open_weights(path)
    kept = (name for name in stored if not name.endswith(IGNORED_SUFFIX))
    return {name: stored[name][...] for name in kept if not name.startswith(IGNORED_PREFIX)}


def fill_head(
    head: DraftHead,
    tensors: dict[str, Tensor],
    dtype: torch.dtype,
    directory: Path,
    kind: str,
    device: torch.device | str = "cpu",
) -> None:
    """Give a head its weights in `dtype` on a device, frozen, and put it in evaluation mode.

    The head may have been made without memory, on torch's device "meta". The tensors are taken out of the
    dictionary one by one, so that no second copy of all is in memory.
    """
    expected = head.state_dict()
    problems = [f"{name} is missing" for name in expected if name not in tensors]
    problems += [f"{name} is not part of this head" for name in tensors if name not in expected]
    problems += [
        f"{name} is {list(tensors[name].shape)}, expected {list(wanted.shape)}"
        for name, wanted in expected.items()
        if name in tensors and tensors[name].shape != wanted.shape
    ]
    if problems:
        raise CheckpointError(
            f"the {kind} head in {directory} does not fit its config: {'; '.join(problems)}"
        )
    placed = {}
    for name, like in expected.items():
        wanted = dtype if like.is_floating_point() else None
        placed[name] = tensors.pop(name).to(device=device, dtype=wanted)
    # Assigned, because head.to(dtype) would round the rotary frequencies as well.
    head.load_state_dict(placed, assign=True)
    with errors_of_file(directory / CONFIG_NAME, "its rotary positions cannot be computed"):
        head.compute_rotary(device)
    head.requires_grad_(False).eval()


def write_head(
    directory: Path, config: LlamaDecoderConfig, settings: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Write config.json, from `config` and then `settings`, and model.safetensors, each in one step."""
    directory.mkdir(parents=True, exist_ok=True)
    dtype = str(tensors["fc.weight"].dtype).removeprefix("torch.")
    written = {
        **config.to_diff_dict(),
        "num_hidden_layers": config.num_hidden_layers,
        "dtype": dtype,
        **settings,
    }
    weights_part, config_part = directory / f"{SAFETENSORS_NAME}.part", directory / f"{CONFIG_NAME}.part"
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    config_part.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    save_file(contiguous, weights_part, metadata={"format": "pt"})
    shutil.copymode(config_part, weights_part)  # safetensors creates files for their owner alone
    weights_part.replace(directory / SAFETENSORS_NAME)
    config_part.replace(directory / CONFIG_NAME)
