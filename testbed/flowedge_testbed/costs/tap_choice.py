"""Whether the stages of an emulated pipeline keep what they tap of draft rows."""

from __future__ import annotations

from dataclasses import replace

from flowedge.models.layers.taps import keeping_pays, taps_within
from flowedge.profiling.documents.link import LinkProfile
from flowedge_testbed.emulation.emulation import Emulation


def with_kept_taps(emulation: Emulation, wanted: bool | None) -> Emulation:
    """Return the emulation whose stages keep what they tap, if they tap anything.

    wanted: None for what saves time: less than a round trip to the stages for the drafter to wait.
    """
    taps, blocks = emulation.taps, emulation.keeping_blocks
    *links, to_first = emulation.links
    ways_back = [
        _latency_s(link)
        for link, (start, stop) in zip(links, blocks, strict=False)
        if taps_within(taps, start, stop)
    ]
    if not ways_back or wanted is not None:
        return replace(emulation, keeps_taps=bool(ways_back and wanted))
    value_s = [emulation.model.stored_bytes / link.bytes_per_s for link in links[: len(blocks)]]
    round_trip_s = _latency_s(to_first) + max(ways_back)
    keeps = keeping_pays(emulation.model.hidden, taps, blocks, value_s, round_trip_s)
    return replace(emulation, keeps_taps=keeps)


def _latency_s(link: LinkProfile) -> float:
    return (link.latency_ms + link.jitter_ms / 2) / 1e3
