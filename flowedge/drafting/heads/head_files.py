"""The folder of a published draft head; reading raises CheckpointError for what is amiss."""

from __future__ import annotations

import json
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig

from flowedge.core.errors import CheckpointError

SAFETENSORS_NAME = "model.safetensors"
BIN_NAME = "pytorch_model.bin"
EMBEDDING_KEY = "embed_tokens.weight"
UNUSED_SETTINGS = ("bias", "architectures", "model_type")
UNREADABLE = (SafetensorError, OSError, EOFError, RuntimeError, ValueError, TypeError, pickle.UnpicklingError)
IGNORED_SUFFIX = "rotary_emb.inv_freq"  # older checkpoints carry this derived buffer


def read_config(path: Path) -> dict[str, Any]:
    """The settings of a head's config.json."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read the EAGLE head's {path}: {error}") from error
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return settings


def llama_config(settings: dict[str, Any], directory: Path, kind: str) -> LlamaConfig:
    """The sizes of a head's one layer; `kind` is what errors call the head."""
    layers = settings.get("num_hidden_layers", 1)
    if layers != 1:
        raise CheckpointError(f"{directory} is no {kind} head: num_hidden_layers is {layers}, expected 1")
    known = {name: value for name, value in settings.items() if name not in UNUSED_SETTINGS}
    try:
        return LlamaConfig(**known)
    except (StrictDataclassError, TypeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{directory / 'config.json'} is not a usable Llama config: {error}") from error


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """A head's tensors by name, without buffers that are derived."""
    stored = _stored_tensors(directory)
    return {name: value for name, value in stored.items() if not name.endswith(IGNORED_SUFFIX)}


def _stored_tensors(directory: Path) -> dict[str, Tensor]:
    safe, pickled = directory / SAFETENSORS_NAME, directory / BIN_NAME
    try:
        if safe.exists():
            return load_file(safe)
        if pickled.exists():
            warnings.warn(f"{pickled} is a pickle; a {SAFETENSORS_NAME} is safer to share", stacklevel=4)
            return dict(torch.load(pickled, map_location="cpu", weights_only=True))
    except UNREADABLE as error:
        raise CheckpointError(f"cannot read the EAGLE head's weights in {directory}: {error}") from error
    raise CheckpointError(f"{directory} has neither {SAFETENSORS_NAME} nor {BIN_NAME}")


def check_tensors(head: nn.Module, tensors: dict[str, Tensor], directory: Path, kind: str) -> None:
    """Raise a CheckpointError that names every missing, unexpected or misshapen tensor."""
    expected = {name: tuple(value.shape) for name, value in head.state_dict().items()}
    problems = [f"{name} is missing" for name in expected if name not in tensors]
    problems += [f"{name} is not part of an {kind} head" for name in tensors if name not in expected]
    problems += [
        f"{name} is {list(tensors[name].shape)}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    if problems:
        raise CheckpointError(f"the EAGLE head in {directory} does not fit its config: {'; '.join(problems)}")


def write_head(
    directory: Path, config: LlamaConfig, settings: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Write config.json, of `config` with `settings` on top, and model.safetensors, each in one step."""
    directory.mkdir(parents=True, exist_ok=True)
    written = {**config.to_diff_dict(), "num_hidden_layers": 1, **settings}
    weights_part, config_part = directory / f"{SAFETENSORS_NAME}.part", directory / "config.json.part"
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    config_part.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    save_file(contiguous, weights_part, metadata={"format": "pt"})
    shutil.copymode(config_part, weights_part)  # safetensors writes for the owner alone
    weights_part.replace(directory / SAFETENSORS_NAME)
    config_part.replace(directory / "config.json")
