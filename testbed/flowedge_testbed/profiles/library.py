"""Profiles by name: shipped with the testbed, or in a file of the user's."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TypeVar

from flowedge.core.errors import BadRequestError
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.model import ModelProfile, YamlDocument
from flowedge.planning.profile.profile_files import read_document
from flowedge_testbed.profiles.documents import HitRates, TokenRanking

SHIPPED = Path(__file__).parent

D = TypeVar("D", bound=YamlDocument)


@cache
def device(name: str, beside: Path | None = None) -> DeviceProfile:
    """Return the shipped device profile of this name, or the profile in the file `name` beside a scenario."""
    return _read("devices", name, beside, DeviceProfile)


@cache
def model(name: str, beside: Path | None = None) -> ModelProfile:
    """Return the emulated model of this name, found as for `device`."""
    return _read("models", name, beside, ModelProfile)


@cache
def link(name: str, beside: Path | None = None) -> LinkProfile:
    """Return the link profile of this name, found as for `device`."""
    return _read("links", name, beside, LinkProfile)


@cache
def hit_rates(model: str, drafter: str) -> HitRates | None:
    """Return the hit rates of the models with these fingerprints, or None."""
    for path in sorted((SHIPPED / "hit_rates").glob("*.yaml")):
        found = read_document(path, HitRates)
        if (found.model, found.drafter) == (model, drafter):
            return found
    return None


@cache
def token_ranking(model: str) -> TokenRanking:
    """Return the ranking of the tokens of the model with this fingerprint.

    Raises:
        BadRequestError: when none is shipped.
    """
    for path in sorted((SHIPPED / "token_rankings").glob("*.yaml")):
        found = read_document(path, TokenRanking)
        if found.model == model:
            return found
    raise BadRequestError(
        f"no ranking of this model's tokens is in {SHIPPED / 'token_rankings'}; leave out draft_vocabulary, "
        "or write a ranking by testbed.tools.drafters.draft_vocabulary --out"
    )


def true_paths(name: str) -> Path:
    """Return the file of true paths that `name` gives: a .safetensors file, or a shipped file by its stem.

    Raises:
        BadRequestError: when there is no such file; it lists the shipped ones.
    """
    shipped = {path.stem: path for path in sorted((SHIPPED / "true_paths").glob("*.safetensors"))}
    if name in shipped:
        return shipped[name]
    if not Path(name).is_file():
        raise BadRequestError(
            f"there is no file of true paths {name!r}; give a .safetensors file, or the name of a shipped "
            f"one: {', '.join(shipped)}"
        )
    return Path(name)


def _read(folder: str, name: str, beside: Path | None, kind: type[D]) -> D:
    if name.endswith((".yaml", ".yml")):
        return read_document((beside or Path()) / name, kind)
    path = SHIPPED / folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in (SHIPPED / folder).glob("*.yaml")))
        raise BadRequestError(f"no profile {name!r} among {folder}; use {known}, or give a .yaml file")
    return read_document(path, kind)
