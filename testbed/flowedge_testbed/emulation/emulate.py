"""Builds the emulated pipeline of a place from the profiles that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError
from flowedge.profiling.documents.link import LinkProfile
from flowedge_testbed.emulation.draft_share import priced_tokens
from flowedge_testbed.emulation.drafter_sizes import emulated_drafter
from flowedge_testbed.emulation.emulation import Emulation, even_split
from flowedge_testbed.emulation.middle_models import emulated_middles
from flowedge_testbed.emulation.place import LinkChoice, Links, Place
from flowedge_testbed.profiles import library

_OF_LINKS = ("mbps", "latency_ms")


def emulate(
    place: Place, drafter_names: Sequence[str], num_middles: int, axes: Mapping[str, float], beside: Path
) -> Emulation:
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

    return Emulation(
        model=model,
        quant=emulated.quant,
        drafter=drafter,
        drafting=drafting,
        draft_node=library.device(devices.draft_node, beside),
        stages=tuple(library.device(name, beside) for name in names),
        links=tuple(link_of(sender) for sender in _senders(links, len(names), len(devices.middles))),
        middles=emulated_middles(devices, num_middles, model, emulated, link_of, beside),
        draft_tokens=None
        if emulated.draft_vocabulary is None
        else priced_tokens(emulated.draft_vocabulary, model.vocab),
        draft_quant=emulated.draft_quant,
        split=tuple(given) if given is not None else even_split(model.layers, len(names)),
    )


def _senders(links: Links, stages: int, middles: int) -> list[str]:
    """Return the devices that the links of the ring leave."""
    senders = [*(f"v{i + 1}" for i in range(stages)), "d0"]
    unknown = sorted(set(links.hops) - set(senders) - {f"m{i + 1}" for i in range(middles)})
    if unknown:
        raise BadRequestError(
            f"links.hops: {', '.join(unknown)} is not a device; there are {', '.join(senders)}"
        )
    return senders


def _link(choice: LinkChoice, swept: Mapping[str, float], beside: Path) -> LinkProfile:
    changes: dict[str, Any] = choice.model_dump(exclude={"profile"}, exclude_none=True)
    return library.link(choice.profile, beside).model_copy(update={**changes, **swept})
