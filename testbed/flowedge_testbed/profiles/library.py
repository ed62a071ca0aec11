"""What is shipped by name: profiles, hit rates, rankings of tokens and true paths."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from flowedge.core.errors import BadRequestError
from flowedge.planning.profile.profile_files import read_document
from flowedge.planning.profile.shipped import device, link, model
from flowedge_testbed.profiles.documents import HitRates, TokenRanking

SHIPPED = Path(__file__).parent

__all__ = ["SHIPPED", "device", "hit_rates", "link", "model", "token_ranking", "true_paths"]


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
