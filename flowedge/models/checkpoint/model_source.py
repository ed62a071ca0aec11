"""The directory of a model's files, which are downloaded from the hub where necessary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from flowedge.core.errors import CheckpointError

BUNDLED = "bundled"
DOWNLOADED_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
)
PICKLED_FILES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def model_directory(source: str, *, hub: bool = True) -> Path:
    """The directory of the model `source`, which is a directory or a hub id.

    A hub id that is not in the local cache is downloaded, if `hub` allows it: config, tokenizer and
    safetensors files, or .bin files where there are no safetensors.
    """
    directory = Path(source).expanduser()
    if directory.is_dir():
        return directory
    if not _HUB_ID.fullmatch(source):
        raise CheckpointError(f"{source}: no such directory, and not a hub id (owner/name)")
    directory = _download(source, DOWNLOADED_FILES, hub)
    if any(directory.glob("*.safetensors")):
        return directory
    return _download(source, (*DOWNLOADED_FILES, *PICKLED_FILES), hub)


def _download(hub_id: str, files: Sequence[str], hub: bool) -> Path:
    # An idle agent imports this module, and has no need of the library.
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError  # noqa: PLC0415

    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(files), local_files_only=not hub))
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        if not hub:
            raise CheckpointError(
                f"{hub_id}: no such directory, not downloaded before, and downloads from the hub are not "
                "allowed (flowedge agent --hub allows them)"
            ) from error
        raise CheckpointError(
            f"{hub_id}: no such directory, and the download from the hub failed "
            f"({type(error).__name__}: {error}); offline, give the path of a local model directory"
        ) from error
