"""Profiles by name: those shipped with the testbed, or a file of one's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TypeVar

from flowedge.core.errors import BadRequestError
from flowedge.profiling.documents.device import DeviceProfile
from flowedge.profiling.documents.document import YamlDocument, read_document
from flowedge.profiling.documents.link import LinkProfile
from flowedge.profiling.documents.model import ModelProfile
from flowedge_testbed.profiles.hit_rate import HitRates

SHIPPED = Path(__file__).parent

D = TypeVar("D", bound=YamlDocument)


@cache
def device(name: str, beside: Path | None = None) -> DeviceProfile:
    """The device profile of this name, or in the file of this name beside a scenario."""
    return _read("devices", name, beside, DeviceProfile)


@cache
def model(name: str, beside: Path | None = None) -> ModelProfile:
    """The emulated model of this name."""
    return _read("models", name, beside, ModelProfile)


@cache
def link(name: str, beside: Path | None = None) -> LinkProfile:
    """The link profile of this name."""
    return _read("links", name, beside, LinkProfile)


@cache
def hit_rates(model: str, drafter: str) -> HitRates | None:
    """The hit rates measured with the pair of these fingerprints; None when none were."""
    for path in sorted((SHIPPED / "hit_rates").glob("*.yaml")):
        found = read_document(path, HitRates)
        if (found.model, found.drafter) == (model, drafter):
            return found
    return None


def _read(folder: str, name: str, beside: Path | None, kind: type[D]) -> D:
    if name.endswith((".yaml", ".yml")):
        return read_document((beside or Path()) / name, kind)
    path = SHIPPED / folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in (SHIPPED / folder).glob("*.yaml")))
        raise BadRequestError(f"no profile {name!r} among {folder}; there are {known}, or give a .yaml file")
    return read_document(path, kind)
