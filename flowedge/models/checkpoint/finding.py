"""Where the files of a model are: in a directory, or downloaded from the hub."""

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


def find_model(source: str, *, hub: bool = True) -> Path:
    """The directory of a model that is given by it or by a hub id.

    A hub id is downloaded (config, tokenizer and safetensors files, or .bin files where there are no others)
    unless it is in the local cache, or `hub` forbids it. CheckpointError when the source cannot be found or
    fetched.
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
    from huggingface_hub import snapshot_download  # noqa: PLC0415 (only a hub id needs it)
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError  # noqa: PLC0415

    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(files), local_files_only=not hub))
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        if not hub:
            raise CheckpointError(
                f"{hub_id}: no such directory here, it was not downloaded before, and the hub is not allowed "
                "(flowedge agent --hub allows it)"
            ) from error
        raise CheckpointError(
            f"{hub_id}: no such directory, and not from the hub ({type(error).__name__}: {error}); "
            "offline, give the path of a local model directory"
        ) from error
