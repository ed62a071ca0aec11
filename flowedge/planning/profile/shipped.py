"""Profiles of devices, links and models that come with FlowEdge, and those in files of the user's."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from flowedge.core.errors import BadRequestError
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.model import ModelProfile, YamlDocument
from flowedge.planning.profile.profile_files import read_document

SHIPPED = Path(str(files("flowedge"))) / "bundled" / "profiles"

D = TypeVar("D", bound=YamlDocument)


@cache
def device(name: str, beside: Path | None = None) -> DeviceProfile:
    """Return the shipped device profile of this name, or the profile in the file `name`.

    beside: the directory that a file's name is relative to; the working directory by default.

    Raises:
        BadRequestError: when there is no such profile, or the file cannot be used.
    """
    return _read("devices", name, beside, DeviceProfile)


@cache
def model(name: str, beside: Path | None = None) -> ModelProfile:
    """Return the sizes of the model of this name, found as for `device`."""
    return _read("models", name, beside, ModelProfile)


@cache
def link(name: str, beside: Path | None = None) -> LinkProfile:
    """Return the link profile of this name, found as for `device`."""
    return _read("links", name, beside, LinkProfile)


def names(folder: str) -> list[str]:
    """Return the names of the shipped profiles in a folder: devices, links or models."""
    return sorted(found.stem for found in (SHIPPED / folder).glob("*.yaml"))


def _read(folder: str, name: str, beside: Path | None, kind: type[D]) -> D:
    if name.endswith((".yaml", ".yml")):
        return read_document((beside or Path()) / name, kind)
    path = SHIPPED / folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(names(folder))
        raise BadRequestError(f"no profile {name!r} among {folder}; use {known}, or give a .yaml file")
    return read_document(path, kind)
