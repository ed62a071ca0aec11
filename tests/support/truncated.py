"""Smaller models that know something: the first layers of the bundled one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

import flowedge

BUNDLED_MODEL = Path(flowedge.__file__).parent / "bundled" / "model"


def first_layers(directory: Path, layers: int) -> Path:
    """A copy of the bundled model, tokenizer included, without the layers from `layers` on."""
    shutil.copytree(BUNDLED_MODEL, directory, dirs_exist_ok=True)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    gone = [f"model.layers.{layer}." for layer in range(layers, config["num_hidden_layers"])]
    tensors = load_file(directory / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(tuple(gone))}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    config["num_hidden_layers"] = layers
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory
