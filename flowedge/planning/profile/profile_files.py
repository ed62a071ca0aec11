"""The files of profiles: names of measured ones, and how any is written and read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from flowedge.core.errors import BadRequestError, FlowEdgeError
from flowedge.planning.profile.model import YamlDocument

SCENARIO = "scenario.yaml"
WIDTH = 110  # columns of a line

D = TypeVar("D", bound=YamlDocument)


@dataclass(frozen=True)
class ProfileFiles:
    """Names of files: of each device, of the link that leaves it if links are measured, and of the model."""

    devices: tuple[str, ...]
    links: tuple[str, ...]
    model: str

    @property
    def profiles(self) -> tuple[str, ...]:
        return (*self.devices, *self.links, self.model)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.profiles, SCENARIO)


def profile_files(device_names: Sequence[str], model: str, *, with_links: bool) -> ProfileFiles:
    """Return the names of all files for devices in ring order.

    Unsuitable characters are replaced, and a number tells devices of the same name apart.
    """
    taken = {Path(SCENARIO).stem}
    stems: list[str] = []
    for name in device_names:
        stem, number = file_stem(name), 2
        while stem in taken or stem.startswith(("link-", "model-")):
            stem = f"{file_stem(name).removeprefix('link-').removeprefix('model-')}-{number}"
            number += 1
        taken.add(stem)
        stems.append(stem)
    followers = [*stems[1:], stems[0]]
    links = [f"link-{a}-{b}.yaml" for a, b in zip(stems, followers, strict=True)] if with_links else []
    model_file = f"model-{file_stem(Path(model).name)}.yaml"
    return ProfileFiles(tuple(f"{stem}.yaml" for stem in stems), tuple(links), model_file)


def file_stem(name: str) -> str:
    """Return a name with unsuitable characters replaced; "device" when nothing is left."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:100] or "device"


def require_free(directory: Path, names: Sequence[str], *, force: bool) -> None:
    """Check that files can be written to a directory.

    Raises:
        BadRequestError: when a file exists and may not be replaced (`force`).
    """
    if directory.exists() and not directory.is_dir():
        raise BadRequestError(f"--out {directory} is a file; give a directory")
    existing = [name for name in names if (directory / name).exists()]
    if existing and not force:
        raise BadRequestError(f"{directory} already has {', '.join(existing)}; --force replaces them")


def write_documents(directory: Path, documents: Mapping[str, Mapping[str, Any]]) -> None:
    """Write YAML files by name.

    Raises:
        FlowEdgeError: when the directory cannot be written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in documents.items():
            text = yaml.safe_dump(dict(content), sort_keys=False, width=WIDTH, allow_unicode=True)
            part = directory / f"{name}.part"
            part.write_text(text, encoding="utf-8")
            part.replace(directory / name)
    except OSError as error:
        raise FlowEdgeError(f"{directory}: the profiles cannot be written: {error}") from error


def read_document(path: Path, kind: type[D]) -> D:
    """Read the document in a file.

    Raises:
        BadRequestError: when it cannot be read; it names the file, the key and the reason.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequestError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise BadRequestError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise BadRequestError(f"{path}: holds no keys")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise BadRequestError(f"{path}: {explain(error)}") from error


def explain(error: ValidationError) -> str:
    """Return every key that is wrong, with its value and the reason."""
    problems = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"]) or "(whole)"
        found = "" if problem["type"] == "missing" else f" (found {_short(problem['input'])})"
        problems.append(f"key {key}: {problem['msg'].removeprefix('Value error, ')}{found}")
    return "; ".join(problems)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
