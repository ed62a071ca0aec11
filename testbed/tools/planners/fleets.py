"""Random fleets, and what is to be planned over them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from flowedge.core.pipeline_config import Quantisation
from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.goal import Goal
from flowedge.planning.profile import shipped
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.link import LinkProfile

MODELS = (
    "tinyllama-1.1b",
    "llama3.2-3b",
    "llama3.1-8b",
    "llama2-13b",
    "qwen2.5-32b",
    "llama2-70b",
    "qwen3-30b-a3b",
)
QUANTS: tuple[Quantisation, ...] = ("int4", "nf4")  # of which drafts pay with the first alone
BASE = "orin-nano-8gb"
MOST_DEVICES = 8
FASTEST = 10.0  # times as fast as the slowest device
ROOM = {"tight": (1.15, 1.6), "loose": (2.5, 4.0)}  # memory of all devices, by what the model needs
SHARES = (0.5, 1.5)  # of a device in the memory, before they are made to add up


@dataclass(frozen=True)
class FleetCase:
    """One fleet and its goal; `title` says what is random about it."""

    title: str
    fleet: Fleet
    goal: Goal


def case(seed: int, most_devices: int = MOST_DEVICES) -> FleetCase:
    """Return the case of a seed: up to 8 devices, speeds 1:1 to 1:10, links of 0.1 to 10 Gbit/s and 20 ms."""
    dice = random.Random(seed)
    quant = dice.choice(QUANTS)
    goal = Goal(shipped.model(dice.choice(MODELS)), quant, context=2048)
    count, room = dice.randint(1, most_devices), dice.choice([*ROOM])
    speeds = [FASTEST ** dice.random() for _ in range(count)]
    shares = [dice.uniform(*SHARES) for _ in range(count)]
    needed = goal.model.layers * goal.layer_bytes + 2 * goal.table_bytes + goal.draft_node_bytes
    memory = dice.uniform(*ROOM[room]) * needed
    link = LinkProfile(
        title="link",
        source=f"seed {seed}",
        mbps=100 * 100 ** dice.random(),
        latency_ms=0.1 * 200 ** dice.random(),
    )
    devices = {
        f"d{number}": _device(speed, share / sum(shares) * memory)
        for number, (speed, share) in enumerate(zip(speeds, shares, strict=True))
    }
    network = f"{link.mbps:.0f} Mbit/s, {link.latency_ms:.1f} ms"
    title = f"{goal.model.title} in {quant}, {count} devices, {room} memory, {network}"
    return FleetCase(title, Fleet(devices, link, {}), goal)


def _device(speed: float, memory_bytes: float) -> DeviceProfile:
    base = shipped.device(BASE)
    changes = {
        "memory_gib": memory_bytes / 2**30,
        "memory_bandwidth_gb_s": base.memory_bandwidth_gb_s * speed,
        "tflops": base.tflops * speed,
        "layer_overhead_ms": base.layer_overhead_ms / speed,
        "dequantise_gweights_s": "hidden",
    }
    return base.model_copy(update=changes)
