"""A model that is named by the hash of its manifest."""

from __future__ import annotations

from flowedge.core.errors import BadRequestError
from flowedge.storage.digest import is_digest
from flowedge.weights.known_models import KnownModels

PREFIX = "sha256:"
SHORTEST = 8  # digits of a hash that is not given in full


def is_reference(model: str) -> bool:
    """Whether a model is named by hash, not by directory or hub id."""
    return model.startswith(PREFIX)


def resolve(model: str, shelf: KnownModels) -> str:
    """The id of a model named "sha256:" and its hash, or the beginning of one that the cache knows.

    BadRequestError when it is no hash, or means none or several.
    """
    digits = model.removeprefix(PREFIX).lower()
    if is_digest(digits):
        return digits
    if len(digits) < SHORTEST:
        raise BadRequestError(f"{model}: give {SHORTEST} digits of the hash or more")
    found = [known.manifest.id for known in shelf.models() if known.manifest.id.startswith(digits)]
    if len(found) != 1:
        many = "none" if not found else "several"
        raise BadRequestError(f"{model} means {many} of the models that `flowedge models` lists")
    return found[0]
