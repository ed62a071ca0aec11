"""Draw places at random from the shipped profiles, and print them as a scenario like `regimes`.

The places of `regimes` were chosen by hand, and auto was tuned with them in sight. Places that nobody chose
tell whether it is ahead elsewhere too. A seed gives the same places every time. With --unequal each has
stages of two or three kinds with as many layers each, so that some are much slower than others.

Run: python -m testbed.tools.random_places --seed 1 --count 24 > drawn.yaml
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from flowedge.core.errors import CapacityError
from flowedge.core.pipeline_config import Quantisation
from flowedge.planning.memory_fit import require_fit
from flowedge.planning.profile import shipped
from flowedge_testbed.emulation.emulate import emulate
from flowedge_testbed.emulation.place import Devices, Emulated, LinkChoice, Links, Place
from flowedge_testbed.profiles import library
from flowedge_testbed.scenario import find_scenario, read_scenario

LIKE = "regimes"
QUANTISATIONS: tuple[Quantisation, ...] = ("none", "int4", "nf4")
COUNTS = (1, 2, 3, 4, 4, 5, 6, 8, 12, 16)  # of stages
LEFT_OUT = frozenset({"bundled", "x86-2core", "loopback"})  # they belong to each other alone
SESSION_ROWS = 2048  # that a device must have room for
MIXED, APART = 0.3, 0.25  # shares of places: stages of two kinds; another link out of the draft node
SMALL_LM = (
    0.2  # share of places with a small language model as the drafter, where the model's profile has one
)


def places(seed: int, count: int, *, unequal: bool = False) -> dict[str, Place]:
    """Return that many places that fit their devices' memory, by name.

    unequal: whether stages of different devices have as many layers each.
    """
    drawn: dict[str, Place] = {}
    for place in _fitting(random.Random(seed), unequal=unequal):
        drawn.setdefault(_name(place), place)
        if len(drawn) == count:
            break
    return drawn


def scenario(seed: int, count: int, *, unequal: bool = False) -> dict[str, Any]:
    """Return the scenario LIKE with drawn places in place of its own."""
    like = read_scenario(find_scenario(LIKE))
    content = like.model_dump(exclude_defaults=True)
    found = places(seed, count, unequal=unequal)
    drawn = {name: place.model_dump(exclude_defaults=True) for name, place in found.items()}
    return {
        **content,
        "name": f"{'unequal' if unequal else 'places'}-{seed}",
        "title": f"{count} places{' of unequal stages' if unequal else ''} drawn with seed {seed}",
        "places": drawn,
    }


def _fitting(draw: random.Random, *, unequal: bool) -> Iterator[Place]:
    """Yield random places that fit, without end."""
    models, devices, links = (_shipped(kind) for kind in ("models", "devices", "links"))
    while True:
        model = draw.choice(models)
        count = min(draw.choice(COUNTS), library.model(model).layers)
        if unequal:
            count = max(count, 2)
            kinds = draw.sample(devices, min(draw.choice((2, 3)), count))
            stages = [*kinds, *(draw.choice(kinds) for _ in range(count - len(kinds)))]
            draw.shuffle(stages)
        else:
            kinds = draw.sample(devices, 2) if draw.random() < MIXED and count > 1 else [draw.choice(devices)]
            stages = sorted(draw.choice(kinds) for _ in range(count))
        small = "small_lm" in library.model(model).drafters and draw.random() < SMALL_LM
        default = LinkChoice(profile=draw.choice(links))
        own = {"d0": LinkChoice(profile=draw.choice(links))} if draw.random() < APART else {}
        place = Place(
            devices=Devices(draft_node=draw.choice(devices), stages=stages),
            links=Links(default=default, hops=own),
            emulated=Emulated(
                model=model,
                quant=draw.choice(QUANTISATIONS),
                drafter="small_lm" if small else None,
                split=None if unequal else _split(library.model(model).layers, stages),
            ),
        )
        try:
            require_fit(emulate(place, ("bundled",), 0, {}, Path()), SESSION_ROWS)
        except CapacityError:
            continue
        yield place


def _split(layers: int, stages: Sequence[str]) -> list[int]:
    """Return the layers of each stage, in proportion to the rates of their memories, at least one each."""
    rates = [library.device(name).bytes_per_s for name in stages]
    free, bounds = layers - len(stages), [0]
    for stage in range(len(stages)):
        bounds.append(round(free * sum(rates[: stage + 1]) / sum(rates)))
    return [1 + after - before for before, after in itertools.pairwise(bounds)]


def _name(place: Place) -> str:
    names, emulated = place.devices.names(None), place.emulated
    model = emulated.model if emulated.quant == "none" else f"{emulated.model}-{emulated.quant}"
    stages = "+".join(f"{names.count(name)}x{name}" for name in dict.fromkeys(names))
    drafter = place.devices.draft_node if emulated.drafter is None else f"{place.devices.draft_node}-lm"
    links = "+".join(link.profile for link in (place.links.default, *place.links.hops.values()))
    return f"{model}/{stages}/{drafter}/{links}"


def _shipped(kind: str) -> list[str]:
    found = sorted(path.stem for path in (shipped.SHIPPED / kind).glob("*.yaml"))
    return [name for name in found if name not in LEFT_OUT]


def main() -> None:
    """Print the scenario as YAML."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--count", type=int, default=24, help="number of places")
    parser.add_argument("--unequal", action="store_true", help="stages of different devices, of equal layers")
    given = parser.parse_args()
    yaml.safe_dump(
        scenario(given.seed, given.count, unequal=given.unequal), sys.stdout, sort_keys=False, width=110
    )


if __name__ == "__main__":
    main()
