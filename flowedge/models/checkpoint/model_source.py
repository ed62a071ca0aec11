"""The files of a model, which are downloaded from the hub where necessary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import flowedge
from flowedge.core.errors import CheckpointError
from flowedge.device.files import expand_home
from flowedge.models.files.quantiser_settings import QUANTISER_FILES
from flowedge.models.gguf.file_choice import (
    QUANTISATION,
    SIDE_FILES,
    model_stating,
    only_model_in,
    patterns_of,
)
from flowedge.models.gguf.split_files import SUFFIX, file_names, files_of

BUNDLED = "bundled"
BUNDLED_PATH = Path(flowedge.__file__).parent / "bundled"
CONFIG = "config.json"
TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
)
DOWNLOADED_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    CONFIG,
    "generation_config.json",
    *QUANTISER_FILES,
    *TOKENIZER_FILES,
)
PICKLED_FILES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
_WEIGHTS = ("*.safetensors", "*.bin")
_NOWHERE = (
    "no such directory or GGUF file, and not a hub id (owner/name, owner/name/FILE.gguf, "
    "owner/name:QUANTISATION)"
)

_PART = r"[A-Za-z0-9][\w.-]*"
_HUB_ID = re.compile(rf"{_PART}(/{_PART})?")
_STATED = re.compile(rf"(?P<place>.+):(?P<quantisation>{QUANTISATION})")
_HUB_GGUF = re.compile(rf"(?P<id>{_PART}/{_PART})/(?P<file>({_PART}/)*{_PART}\.gguf)")


@dataclass(frozen=True)
class FoundModel:
    """Where a model's files are on this device.

    Attributes:
        directory: the directory of the files.
        gguf: the GGUF files of the model, in order; empty for a Hugging Face checkpoint.
    """

    directory: Path
    gguf: tuple[Path, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the config is there; GGUF files hold it themselves."""
        return bool(self.gguf) or (self.directory / CONFIG).is_file()

    def check_files(self) -> None:
        """Check that the directory holds a config and weights. No file is read.

        Raises:
            CheckpointError: when one of the two is missing.
        """
        if not self.is_complete:
            content = (
                "is empty" if not any(self.directory.iterdir()) else f"holds no {CONFIG} and no GGUF model"
            )
            raise CheckpointError(f"{self.directory}: the directory {content}; give the directory of a model")
        if not self.gguf and not any(any(self.directory.glob(pattern)) for pattern in _WEIGHTS):
            raise CheckpointError(
                f"{self.directory}: the directory holds a {CONFIG} and no weights (*.safetensors); "
                "was its download interrupted?"
            )


def is_hub_model(source: str) -> bool:
    """Return whether a source has the form owner/name, owner/name:QUANTISATION or owner/name/FILE.gguf."""
    stated = _STATED.fullmatch(source)
    hub_id = source if stated is None else stated["place"]
    return ("/" in hub_id and _HUB_ID.fullmatch(hub_id) is not None) or bool(_HUB_GGUF.fullmatch(source))


def find_model(source: str, *, hub: bool = True) -> FoundModel:
    """Find the model `source`, and download it if `hub` allows that. No file is read.

    `source` is a directory, a GGUF file, a hub id (owner/name), or a GGUF file of a hub id
    (owner/name/FILE.gguf). A directory without a config may hold one GGUF model. A GGUF model that is split
    into several files is named by any of them. Of several GGUF models in a directory or hub id, the name's
    quantisation chooses one (owner/name:Q4_K_M).

    Of a hub id, config, tokenizer and safetensors files are downloaded, or .bin files where there are no
    safetensors.

    Raises:
        CheckpointError: when the source cannot be found or downloaded, or is not one model.
    """
    path = expand_home(source)
    if path.is_dir():
        first = None if (path / CONFIG).is_file() else only_model_in(path)
        return FoundModel(path, () if first is None else files_of(first))
    if path.suffix == SUFFIX and path.is_file():
        return FoundModel(path.parent, files_of(path))
    stated = _STATED.fullmatch(source)
    if stated is not None and not path.exists():
        return _find_quantisation(stated["place"], stated["quantisation"], hub)
    hub_file = _HUB_GGUF.fullmatch(source)
    if hub_file is not None:
        names = file_names(Path(hub_file["file"]).name)
        folder = Path(hub_file["file"]).parent
        directory = _download(hub_file["id"], [str(folder / name) for name in names], hub)
        first = directory / folder / names[0]
        if not first.is_file():
            raise CheckpointError(f"{source}: the hub id {hub_file['id']} has no file {hub_file['file']}")
        return FoundModel(first.parent, files_of(first))
    if not _HUB_ID.fullmatch(source):
        raise CheckpointError(f"{source}: {_NOWHERE}")
    directory = _download(source, DOWNLOADED_FILES, hub)
    if not (directory / CONFIG).is_file():
        raise CheckpointError(
            f"{source}: the hub id has no {CONFIG}; name one of its GGUF files by {source}/FILE.gguf, or "
            f"by its quantisation, like {source}:Q4_K_M"
        )
    if any(directory.glob("*.safetensors")):
        return FoundModel(directory)
    return FoundModel(_download(source, (*DOWNLOADED_FILES, *PICKLED_FILES), hub))


def find_here(source: str, *, needed: bool) -> FoundModel | None:
    """Find a model on this machine; None if only the hub or other machines may have it.

    Nothing is downloaded.

    Args:
        needed: whether a process of this machine has to open the model.

    Raises:
        CheckpointError: when the source cannot be a model for anybody, or is needed here and is no model.
    """
    path, place = expand_home(source), expand_home(source.rpartition(":")[0] or source)
    if path.is_file() and path.suffix != SUFFIX:
        raise CheckpointError(
            f"{source}: is a file and no GGUF file; give the directory that holds the model"
        )
    if path.exists() or place.is_dir():
        found = find_model(source, hub=False)
        if needed:
            found.check_files()
        return found if found.is_complete else None
    if is_hub_model(source):
        try:
            return find_model(source, hub=False)
        except CheckpointError:
            return None  # not downloaded yet
    if needed or not source.startswith(("/", "~")):
        raise CheckpointError(f"{source}: {_NOWHERE}")
    return None


def is_word(source: str) -> bool:
    """Return whether a source is neither a path of this machine nor of the form of a path or a hub id."""
    return (
        "/" not in source
        and not source.startswith("~")
        and not Path(source.rpartition(":")[0] or source).exists()
    )


def _find_quantisation(place: str, quantisation: str, hub: bool) -> FoundModel:
    """The only GGUF model of a directory or hub id whose name states a quantisation."""
    directory = expand_home(place)
    if not directory.is_dir():
        if _HUB_ID.fullmatch(place) is None or "/" not in place:
            raise CheckpointError(f"{place}: no such directory, and not a hub id (owner/name)")
        directory = _download(place, patterns_of(quantisation), hub, ignored=SIDE_FILES)
    first = model_stating(directory, quantisation)
    return FoundModel(first.parent, files_of(first))


def model_directory(source: str, *, hub: bool = True) -> Path:
    """The directory of the config of the model `source`; see `find_model`, which raises the errors.

    The config of a GGUF model is written into a directory of this process.
    """
    found = find_model(source, hub=hub)
    if not found.gguf:
        return found.directory
    # An idle agent imports this module, and has no need of the gguf package.
    from flowedge.models.gguf.model_files import model_files  # noqa: PLC0415

    return model_files(found.gguf).directory


def tokenizer_directory(source: str, *, hub: bool = True) -> Path:
    """The directory of the tokenizer `source`, a directory or a hub id whose tokenizer is downloaded.

    Raises:
        CheckpointError: when the source cannot be found or downloaded, or holds no tokenizer.
    """
    directory = expand_home(source)
    if not directory.is_dir():
        if not _HUB_ID.fullmatch(source):
            raise CheckpointError(f"tokenizer {source}: no such directory, and not a hub id (owner/name)")
        directory = _download(source, TOKENIZER_FILES, hub)
    if not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise CheckpointError(
            f"tokenizer {source}: there is no tokenizer.json, tokenizer.model or vocab.json"
        )
    return directory


def _download(hub_id: str, files: Sequence[str], hub: bool, ignored: Sequence[str] = ()) -> Path:
    # An idle agent imports this module, and has no need of the library.
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError  # noqa: PLC0415

    try:
        return Path(
            snapshot_download(
                hub_id, allow_patterns=list(files), ignore_patterns=list(ignored), local_files_only=not hub
            )
        )
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        if not hub:
            raise CheckpointError(
                f"{hub_id}: no such directory, not downloaded before, and downloads from the hub are not "
                f"allowed; on this device, run `flowedge models pull {hub_id} --hub`, or start its agent "
                "with --hub (hub = true under [weights] in agent.toml)"
            ) from error
        raise CheckpointError(
            f"{hub_id}: no such directory, and it cannot be downloaded from the hub: {_reason(error)}"
        ) from error


def _reason(error: Exception) -> str:
    """Return why the hub gave nothing, and what to do."""
    from huggingface_hub import errors  # noqa: PLC0415 (see _download)

    # A missing copy is what the library tells after it has met the error that matters.
    missing = isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None
    cause = error.__cause__ if missing else error
    if isinstance(cause, errors.GatedRepoError):
        return "accept the licence on the page of this model, then run `hf auth login`"
    if isinstance(cause, errors.RepositoryNotFoundError):
        return "the hub has no model of this name; if it is private, run `hf auth login`"
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set; unset it, or give the path of a model directory"
    text = str(cause).strip().partition("\n")[0]
    return f"{text} ({type(cause).__name__}); without a network give the path of a model directory"
