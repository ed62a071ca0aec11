"""The sizes that a real drafter is priced by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from flowedge.core.errors import BadRequestError
from flowedge.drafting.choice import RECALL
from flowedge.drafting.drafter_kind import DrafterKind
from flowedge.drafting.loading import drafter_kinds
from flowedge.profiling.documents.model import DrafterSize, Eagle3Size, ModelProfile, SmallModelSize
from flowedge_testbed.emulation.drafting_sizes import DraftingSize, NGramSize, RecallSize

T = TypeVar("T", Eagle3Size, SmallModelSize)


def emulated_drafter(
    model: ModelProfile, named: str | None, names: Sequence[str]
) -> tuple[DrafterSize, tuple[DraftingSize, ...]]:
    """Return the `drafter` and the `drafting` of an Emulation.

    An EAGLE-1/2 head is priced as the named drafter, or as the profile's first if none is named. A small
    language model or an EAGLE-3 head is priced as a drafter of its own kind: the named one, or the first.

    Args:
        named: a drafter of the profile, by name.
        names: of the real drafter, as in `--drafter`.

    Raises:
        BadRequestError: when the profile has no drafter of that name, or none of the kind.
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
    """Return the default if it is of this kind, or else the profile's first of the kind."""
    for size in (default, *model.drafters.values()):
        if isinstance(size, kind):
            return size
    raise BadRequestError(f"the profile of {model.title} has no {missing}; add one to a profile of your own")
