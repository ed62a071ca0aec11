"""Builds the emulated pipeline of a place from the profiles that it names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from flowedge.core.errors import BadRequestError
from flowedge.drafting.block.block_settings import BlockWiring
from flowedge.drafting.choice import RECALL, DrafterKind
from flowedge.drafting.heads.head_settings import CONFIG_NAME, read_settings
from flowedge.drafting.loading import drafter_directory, drafter_kinds
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.model import (
    BlockSize,
    DrafterSize,
    DraftingSize,
    Eagle3Size,
    ModelProfile,
    NGramSize,
    RecallSize,
    SmallModelSize,
)
from flowedge.planning.profile.pipeline import MiddleProfile, PipelineProfile
from flowedge.planning.split import even_split
from flowedge_testbed.emulation.draft_share import priced_tokens
from flowedge_testbed.emulation.place import Devices, Emulated, LinkChoice, Links, Place, as_names
from flowedge_testbed.profiles import library

_OF_LINKS = ("mbps", "latency_ms")


def emulate(
    place: Place, drafter_names: Sequence[str], num_middles: int, axes: Mapping[str, float], beside: Path
) -> PipelineProfile:
    """Return the emulated pipeline of a place.

    Args:
        drafter_names: of the real drafter, as in `--drafter`.
        num_middles: middle models that compute.
        axes: values that replace the place's own: mbps, latency_ms, stages.
        beside: the directory that .yaml names are relative to.

    Raises:
        BadRequestError: when a profile does not exist, or the place does not fit together.
    """
    devices, links, emulated = place.devices, place.links, place.emulated
    swept = {name: axes[name] for name in _OF_LINKS if name in axes}
    count = int(axes["stages"]) if "stages" in axes else None
    names = devices.names(count)
    model = library.model(emulated.model, beside)
    drafter, drafting = emulated_drafter(model, emulated.drafter, drafter_names)
    given = emulated.split if count is None else None

    def link_of(sender: str) -> LinkProfile:
        return _link(links.hops.get(sender, links.default), swept, beside)

    return PipelineProfile(
        model=model,
        quant=emulated.quant,
        drafter=drafter,
        drafting=drafting,
        draft_node=library.device(devices.draft_node, beside),
        stages=tuple(library.device(name, beside) for name in names),
        links=tuple(link_of(sender) for sender in _senders(links, len(names), devices)),
        middles=emulated_middles(devices, num_middles, model, emulated, link_of, beside),
        draft_tokens=None
        if emulated.draft_vocabulary is None
        else priced_tokens(emulated.draft_vocabulary, model.vocab),
        draft_quant=emulated.draft_quant,
        beside=devices.beside(len(names)),
        split=tuple(given)
        if given is not None
        else tuple(even_split(model.layers, len(names), larger_first=True)),
    )


def _senders(links: Links, stages: int, devices: Devices) -> list[str]:
    """Return the devices that the links of the ring leave."""
    senders = [*(f"v{i + 1}" for i in range(stages)), "d0"]
    middles = sum(len(as_names(names)) for names in devices.middles)
    unknown = sorted(set(links.hops) - set(senders) - {f"m{i + 1}" for i in range(middles)})
    if unknown:
        raise BadRequestError(
            f"links.hops: {', '.join(unknown)} is not a device; there are {', '.join(senders)}"
        )
    return senders


def _link(choice: LinkChoice, swept: Mapping[str, float], beside: Path) -> LinkProfile:
    changes: dict[str, Any] = choice.model_dump(exclude={"profile"}, exclude_none=True)
    return library.link(choice.profile, beside).model_copy(update={**changes, **swept})


def emulated_middles(
    devices: Devices,
    num_middles: int,
    model: ModelProfile,
    emulated: Emulated,
    link_of: Callable[[str], LinkProfile],
    beside: Path,
) -> tuple[MiddleProfile, ...]:
    """Return the emulated middle models of a scenario, the smallest first.

    Args:
        num_middles: middle models that compute.
        link_of: gives the link that leaves the device of a name (m1, m2, ..., over all middle models).
        beside: the directory that .yaml names are relative to.

    Raises:
        BadRequestError: when a middle model has no size or no device.
    """
    counts = num_middles, len(devices.middles), len(emulated.middles)
    if len(set(counts)) > 1:
        raise BadRequestError(
            f"the pair has {counts[0]} middle models (--middle DIR,...), devices.middles {counts[1]} devices "
            f"or lists of devices, and emulated.middles {counts[2]} sizes: they must be as many"
        )
    numbers = itertools.count(1)
    return tuple(
        MiddleProfile(
            _size(model, size),
            tuple(library.device(name, beside) for name in as_names(names)),
            tuple(link_of(f"m{next(numbers)}") for _ in as_names(names)),
        )
        for size, names in zip(emulated.middles, devices.middles, strict=True)
    )


def _size(model: ModelProfile, named: str) -> SmallModelSize:
    size = model.drafters.get(named)
    if not isinstance(size, SmallModelSize):
        known = [name for name, each in model.drafters.items() if isinstance(each, SmallModelSize)]
        raise BadRequestError(
            f"{model.title} has no small_lm {named!r} among its drafters; it has {', '.join(known) or 'none'}"
        )
    return size


T = TypeVar("T", Eagle3Size, SmallModelSize)


def emulated_drafter(
    model: ModelProfile, named: str | None, names: Sequence[str]
) -> tuple[DrafterSize, tuple[DraftingSize, ...]]:
    """Return the `drafter` and the `drafting` of an PipelineProfile.

    An EAGLE-1/2 or mtp head is priced as the named drafter, or as the profile's first if none is named. A
    small language model or an EAGLE-3 head is priced as a drafter of its own kind: the named one, or the
    first. A block head is priced by its own layers and blocks, each as wide as the emulated model.

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
    sources = [name for name in names if name != RECALL]
    recall = (RecallSize(kind="recall"),) if RECALL in names else ()
    if kinds in ((), ("eagle",), ("mtp",)) and not recall:
        return default, ()
    parts = (
        *(_part(model, default, kind, name) for kind, name in zip(kinds, sources, strict=True)),
        *recall,
    )
    if len(parts) == 1 and not isinstance(parts[0], NGramSize | RecallSize):
        return parts[0], ()
    return default, parts


def _part(model: ModelProfile, default: DrafterSize, kind: DrafterKind, name: str) -> DrafterSize | NGramSize:
    match kind:
        case "block":
            return block_size(drafter_directory(name))
        case "ngram":
            return NGramSize(kind="ngram")
        case "eagle" | "mtp":
            return default
        case "eagle3":
            return _of_kind(
                model, default, Eagle3Size, "eagle3 among its drafters to price an EAGLE-3 head by"
            )
        case "lm":
            return _of_kind(
                model, default, SmallModelSize, "small_lm among its drafters to price a language model by"
            )


def block_size(directory: Path) -> BlockSize:
    """Return the blocks and layers of the block head in a directory.

    Raises:
        BadRequestError: for kinds that have no price.
        CheckpointError: as of BlockWiring.
    """
    wiring = BlockWiring.of(read_settings(directory), directory / CONFIG_NAME)
    if wiring.only_drafts:
        raise BadRequestError(
            f"drafter {directory}: P-EAGLE and DFlash2 heads have no price in emulations; name a DFlash, "
            "JetSpec or DSpark head, or measure on devices"
        )
    if wiring.pass_depths not in (None, wiring.depths):
        raise BadRequestError(
            f"drafter {directory}: blocks behind paths (pass_depths {wiring.pass_depths}) have no price in "
            "emulations; leave pass_depths out of its config.json, or measure on devices"
        )
    return BlockSize(
        kind="block",
        size=wiring.size,
        depths=wiring.depths,
        layers=len(wiring.layers),
        taps=len(wiring.taps),
        markov_rank=wiring.markov_rank,
    )


def _of_kind(model: ModelProfile, default: DrafterSize, kind: type[T], missing: str) -> T:
    """Return the default if it is of this kind, or else the profile's first of the kind."""
    for size in (default, *model.drafters.values()):
        if isinstance(size, kind):
            return size
    raise BadRequestError(f"the profile of {model.title} has no {missing}; add one to a profile of your own")
