"""The links between the devices of a fleet, measured in pairs, and which of them are unusual."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

from flowedge.core.errors import FlowEdgeError
from flowedge.planning.profile import shipped
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.measured_profiles import link_profile
from flowedge.planning.profile.measurement import LinkMeasurement

UNKNOWN = "gigabit"  # what a link is taken for that was not measured
ALIKE, ALIKE_S = 1.25, 2e-4  # times as long, or seconds more, that a link takes which counts as the usual one

Pair: TypeAlias = "frozenset[str]"
Measure: TypeAlias = "Callable[[str, str], Awaitable[LinkMeasurement]]"
"""Measures the link from one device to another, by their names."""


async def measured_links(
    pairs: Iterable[tuple[str, str]],
    measure: Measure,
    failed: Callable[[str, str, FlowEdgeError], Awaitable[None]],
) -> dict[Pair, LinkProfile]:
    """Return the links that can be measured, one at a time of each device.

    failed: is told why another one, given by its ends, cannot be.
    """
    found = dict[Pair, LinkProfile]()

    async def one(sender: str, receiver: str) -> None:
        try:
            measured = await measure(sender, receiver)
        except FlowEdgeError as error:
            await failed(sender, receiver, error)
        else:
            found[frozenset((sender, receiver))] = link_profile(sender, receiver, measured)

    for at_once in in_rounds(pairs):
        await asyncio.gather(*(one(*pair) for pair in at_once))
    return found


def in_rounds(pairs: Iterable[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Return pairs in rounds, in each of which a device is in one pair at most."""
    rounds: list[list[tuple[str, str]]] = []
    for pair in pairs:
        free = (each for each in rounds if not {name for other in each for name in other} & {*pair})
        chosen = next(free, None)
        if chosen is None:
            rounds.append([pair])
        else:
            chosen.append(pair)
    return rounds


def usual_link(
    links: Mapping[Pair, LinkProfile], segment_bytes: float
) -> tuple[LinkProfile, dict[Pair, LinkProfile]]:
    """Return the usual link, and those that differ from it by more than measurements scatter.

    segment_bytes: of the segment by whose time links are compared.
    """
    if not links:
        return shipped.link(UNKNOWN), {}
    usual = shipped.link(UNKNOWN).model_copy(
        update={
            "mbps": statistics.median(each.mbps for each in links.values()),
            "latency_ms": statistics.median(each.latency_ms for each in links.values()),
        }
    )

    def seconds(link: LinkProfile) -> float:
        return segment_bytes / link.bytes_per_s + link.latency_ms / 1e3

    def differs(link: LinkProfile) -> bool:
        less, more = sorted((seconds(link), seconds(usual)))
        return more > ALIKE * less and more > less + ALIKE_S

    return usual, {pair: link for pair, link in links.items() if differs(link)}


def words(usual: LinkProfile, others: Mapping[Pair, LinkProfile], names: Mapping[str, str]) -> str:
    """Return what links are like, in words. names: of the devices, by what they are called in the pairs."""
    unusual = [
        f"{' and '.join(sorted(names[each] for each in pair))} {_rate(link)}" for pair, link in others.items()
    ]
    return "; ".join([f"links have {_rate(usual)}", *sorted(unusual)])


def _rate(link: LinkProfile) -> str:
    return f"{link.mbps:.3g} Mbit/s and {link.latency_ms:.2g} ms"
