"""The models that options name: on this machine, on the hub, or on the agents alone."""

from __future__ import annotations

import difflib
from pathlib import Path

import flowedge
from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.device.files import expand_home
from flowedge.drafting.choice import BUNDLED_FOLDERS, unknown_drafter
from flowedge.models.checkpoint.model_source import (
    BUNDLED,
    CONFIG,
    FoundModel,
    find_model,
    is_hub_model,
    tokenizer_directory,
)
from flowedge.models.gguf.split_files import SUFFIX

_BUNDLED_PATH = Path(flowedge.__file__).parent / "bundled"
_WEIGHTS = ("*.safetensors", "*.bin")


def find_target(source: str, *, needed: bool) -> FoundModel | None:
    """Return the files of `--model`; see `find_here`."""
    if source == BUNDLED:
        return FoundModel(_BUNDLED_PATH / "model")
    if is_word(source):
        close = difflib.get_close_matches(source, [BUNDLED], n=1)
        meant = f"did you mean {close[0]}?" if close else f"the only word for a model is {BUNDLED}"
        raise BadRequestError(
            f"--model {source}: no such directory or GGUF file, and not a hub id (owner/name); {meant}"
        )
    return find_here("--model", source, needed=needed)


def find_drafter(source: str, *, needed: bool) -> FoundModel | None:
    """Return the files of one `--drafter` that is a model; see `find_here`."""
    if source in BUNDLED_FOLDERS:
        return FoundModel(_BUNDLED_PATH / BUNDLED_FOLDERS[source])
    if is_word(source):
        raise unknown_drafter(source)
    return find_here("--drafter", source, needed=needed)


def find_here(option: str, source: str, *, needed: bool) -> FoundModel | None:
    """Return the files of a model on this machine; None if the model may be on the hub or on the agents only.

    Nothing is downloaded.

    Args:
        option: the option to name in errors.
        needed: whether a process of this machine has to open the model.

    Raises:
        BadRequestError: when the source cannot be a model for anybody, or is needed here and is no model.
    """
    path = expand_home(source)
    is_directory, is_file = path.is_dir(), path.is_file()
    if is_directory or (is_file and path.suffix == SUFFIX):
        return _checked(option, source, needed=needed)
    if is_file:
        raise BadRequestError(
            f"{option} {source}: is a file and no GGUF file; give the directory that holds the model"
        )
    if is_hub_model(source) or _states_quantisation(source):
        try:
            return find_model(source, hub=False)
        except CheckpointError as error:
            if _states_quantisation(source):
                raise BadRequestError(f"{option} {error}") from error
            return None  # not downloaded yet
    if needed or not source.startswith(("/", "~")):
        raise BadRequestError(
            f"{option} {source}: no such directory or GGUF file, and not a hub id (owner/name, "
            "owner/name/FILE.gguf, owner/name:QUANTISATION)"
        )
    return None  # the agents may have it


def check_tokenizer(source: str, *, needed: bool) -> Path | None:
    """Return the directory of `--tokenizer`; None if the tokenizer is elsewhere.

    Raises:
        BadRequestError: when the directory is here and holds no tokenizer, or the source cannot be one.
    """
    path = expand_home(source)
    if not path.is_dir() and (is_hub_model(source) or (source.startswith(("/", "~")) and not needed)):
        return None
    try:
        return tokenizer_directory(source, hub=False)
    except CheckpointError as error:
        raise BadRequestError(f"--{error}") from error


def is_word(source: str) -> bool:
    """Return whether a name is neither a path of this machine nor of the form of a path or a hub id."""
    return (
        "/" not in source
        and not source.startswith("~")
        and not Path(source.rpartition(":")[0] or source).exists()
    )


def _states_quantisation(source: str) -> bool:
    """Return whether a source is a directory of this machine and a quantisation, like DIR:Q4_K_M."""
    place, colon, _ = source.rpartition(":")
    return bool(colon) and expand_home(place).is_dir()


def _checked(option: str, source: str, *, needed: bool) -> FoundModel | None:
    try:
        found = find_model(source, hub=False)
    except CheckpointError as error:
        raise BadRequestError(f"{option} {error}") from error
    if not needed:
        return found if found.is_complete else None
    if not found.is_complete:
        content = "is empty" if not any(found.directory.iterdir()) else f"holds no {CONFIG} and no GGUF model"
        raise BadRequestError(f"{option} {source}: the directory {content}; give the directory of a model")
    if not found.gguf and not any(any(found.directory.glob(pattern)) for pattern in _WEIGHTS):
        raise BadRequestError(
            f"{option} {source}: the directory holds a {CONFIG} and no weights (*.safetensors); "
            "was its download interrupted?"
        )
    return found
