"""The settings with which a checkpoint was quantised: in its config, or in a file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.text.json_object import read_json_object

# Files of the first versions of GPTQ and AWQ tools, whose config.json says nothing of the quantisation.
QUANTISER_FILES = ("quantize_config.json", "quant_config.json")
# The first versions of compressed-tensors used the second key.
_KEYS = ("quantization_config", "compression_config")


def quantiser_settings(config: Mapping[str, Any], directory: Path) -> dict[str, Any] | None:
    """Find the settings of the quantiser.

    Args:
        config: the content of config.json. A multimodal config may have the settings in its `text_config`.
        directory: of the checkpoint.

    Returns:
        None if the checkpoint is not quantised.

    Raises:
        CheckpointError: when the settings are not a JSON object, or their file cannot be read.
    """
    text_config = config.get("text_config")
    for part in (config, text_config if isinstance(text_config, dict) else {}):
        for key in _KEYS:
            found = part.get(key)
            if isinstance(found, dict):
                return found
            if found is not None:
                raise CheckpointError(f"{directory}: {key} in config.json is not a JSON object")
    path = quantiser_file(config, directory)
    return None if path is None else read_json_object(path)


def quantiser_file(config: Mapping[str, Any], directory: Path) -> Path | None:
    """The file beside config.json that has the settings; None where config.json has them, or nothing has."""
    if any(config.get(key) is not None for key in _KEYS):
        return None
    paths = [directory / name for name in QUANTISER_FILES]
    return next((path for path in paths if path.is_file()), None)
