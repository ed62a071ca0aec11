"""Which sizes the drafter of a pair is priced by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from flowedge.core.errors import BadRequestError
from flowedge.drafting.choice import RECALL
from flowedge.drafting.loading import DrafterKind, drafter_kinds
from flowedge.profiling.documents.model import (
    DrafterSize,
    DraftingSize,
    Eagle3Size,
    ModelProfile,
    NGramSize,
    RecallSize,
    SmallModelSize,
)

T = TypeVar("T", Eagle3Size, SmallModelSize)


def emulated_drafter(
    model: ModelProfile, named: str | None, names: Sequence[str]
) -> tuple[DrafterSize, tuple[DraftingSize, ...]]:
    """The `drafter` and the `drafting` of an Emulation (which see).

    A small language model and an EAGLE-3 head are each priced as the one that is named, or else the profile's
    first; an EAGLE-1/2 head as whatever is named, or else the profile's first drafter.

    Args:
        named: a drafter of the profile; names: of the real drafter, as --drafter has them.

    Raises BadRequestError for a name that the profile does not have, or a kind of which it has none.
    """
    if named is not None and named not in model.drafters:
        raise BadRequestError(f"{model.title} has no drafter {named!r}; it has {', '.join(model.drafters)}")
    default = model.drafters[named] if named is not None else next(iter(model.drafters.values()))
    kinds = drafter_kinds(names)
    recall = (RecallSize(kind="recall"),) if RECALL in names else ()
    if kinds in ((), ("eagle",)) and not recall:
        return default, ()
    parts = (*(_part(model, default, kind) for kind in kinds), *recall)
    if len(parts) == 1 and not isinstance(parts[0], NGramSize | RecallSize):
        return parts[0], ()
    return default, parts


def _part(model: ModelProfile, default: DrafterSize, kind: DrafterKind) -> DrafterSize | NGramSize:
    match kind:
        case "ngram":
            return NGramSize(kind="ngram")
        case "eagle":
            return default
        case "eagle3":
            return _of_kind(
                model, default, Eagle3Size, "eagle3 among its drafters to price an EAGLE-3 head by"
            )
        case "lm":
            return _of_kind(
                model, default, SmallModelSize, "small_lm among its drafters to price a language model by"
            )


def _of_kind(model: ModelProfile, default: DrafterSize, kind: type[T], missing: str) -> T:
    """The default where it is of this kind, or else the profile's first that is."""
    for size in (default, *model.drafters.values()):
        if isinstance(size, kind):
            return size
    raise BadRequestError(f"the profile of {model.title} has no {missing}; add one to a profile of your own")
