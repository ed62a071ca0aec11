"""Which sizes the drafter of a pair is priced by."""

from __future__ import annotations

from flowedge.drafting.loading import DrafterKind, drafter_kinds
from flowedge.errors import BadRequestError
from testbed.profiles.model import EagleSize, ModelProfile, NGramSize, SmallModelSize

ModelDrafter = EagleSize | SmallModelSize


def emulated_drafter(
    model: ModelProfile, named: str | None, choice: str
) -> tuple[ModelDrafter, tuple[ModelDrafter | NGramSize, ...]]:
    """The `drafter` and the `drafting` of an Emulation (which see).

    A small language model is priced as the one that is named, or else the profile's first; an EAGLE head as
    whatever is named, or else the profile's first drafter.

    Args:
        named: a drafter of the profile; choice: the real drafter, as --drafter says it.

    Raises BadRequestError for a name that the profile does not have, a kind of which it has none, or
    one that has no price.
    """
    if named is not None and named not in model.drafters:
        raise BadRequestError(f"{model.title} has no drafter {named!r}; it has {', '.join(model.drafters)}")
    default = model.drafters[named] if named is not None else next(iter(model.drafters.values()))
    kinds = drafter_kinds(choice)
    if "eagle3" in kinds:
        raise BadRequestError(
            f"--drafter {choice}: the wider rows that an EAGLE-3 head needs from the stages have no price in "
            "the testbed; benchmark another drafter, or measure this one with flowedge generate"
        )
    if kinds in ((), ("eagle",)):
        return default, ()
    parts = tuple(_part(model, default, kind) for kind in kinds)
    if len(parts) == 1 and not isinstance(parts[0], NGramSize):
        return parts[0], ()
    return default, parts


def _part(model: ModelProfile, default: ModelDrafter, kind: DrafterKind) -> ModelDrafter | NGramSize:
    if kind == "ngram":
        return NGramSize(kind="ngram")
    if kind == "eagle" or isinstance(default, SmallModelSize):
        return default
    for size in model.drafters.values():
        if isinstance(size, SmallModelSize):
            return size
    raise BadRequestError(
        f"the profile of {model.title} has no small_lm among its drafters to price a language model by; "
        "add one to a profile of your own"
    )
