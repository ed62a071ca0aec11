"""Who is on the network, by what has been heard and when. Times are seconds of one clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from flowedge.discovery.device_record import AdvertisedDevice

GONE_AFTER = 2.0  # lifetimes of an announcement without a word
MIN_TTL_S, MAX_TTL_S = 1.0, 3600.0  # what a device may say its announcement is good for


class Change(str, Enum):
    """What has happened to a device."""

    CAME = "came"
    CHANGED = "changed"
    RESTARTED = "restarted"
    LEFT = "left"  # said goodbye
    STALE = "stale"  # nothing was heard of it for the lifetime of its announcement
    RETURNED = "returned"  # was stale
    GONE = "gone"  # was stale for too long


@dataclass(frozen=True)
class PresenceEvent:
    """One change of one device."""

    change: Change
    record: AdvertisedDevice


@dataclass(frozen=True)
class Sighting:
    """A device and when it was last heard of; `ttl` is how long that is good for."""

    record: AdvertisedDevice
    heard: float
    ttl: float
    stale: bool = False


class Presence:
    """What has been heard of each instance: each start of an agent is one, under a name of its own."""

    def __init__(self) -> None:
        self._sightings: dict[str, Sighting] = {}

    @property
    def sightings(self) -> list[Sighting]:
        """All that are there or stale, by name, then id, then address."""
        return sorted(self._sightings.values(), key=lambda sighting: sighting.record)

    def knows(self, instance: str) -> bool:
        """Whether it is there or stale."""
        return instance in self._sightings

    def heard(self, instance: str, record: AdvertisedDevice, ttl: float, now: float) -> list[PresenceEvent]:
        """An announcement. One that has an address of another instance of the same id replaces it."""
        sighting = Sighting(record, now, min(max(ttl, MIN_TTL_S), MAX_TTL_S))
        previous = self._sightings.get(instance)
        earlier = [
            name
            for name, other in self._sightings.items()
            if name != instance
            and other.record.id == record.id
            and not set(other.record.addresses).isdisjoint(record.addresses)
        ]
        for name in earlier:
            del self._sightings[name]
        self._sightings[instance] = sighting
        if previous is None:
            return [PresenceEvent(Change.RESTARTED if earlier else Change.CAME, record)]
        if previous.stale:
            return [PresenceEvent(Change.RETURNED, record)]
        return [PresenceEvent(Change.CHANGED, record)] if previous.record != record else []

    def refreshed(self, instance: str, ttl: float, now: float) -> list[PresenceEvent]:
        """A sign of life that changes nothing else."""
        sighting = self._sightings.get(instance)
        return [] if sighting is None else self.heard(instance, sighting.record, ttl, now)

    def goodbye(self, instance: str) -> list[PresenceEvent]:
        """It says that it leaves."""
        sighting = self._sightings.pop(instance, None)
        return [] if sighting is None else [PresenceEvent(Change.LEFT, sighting.record)]

    def tick(self, now: float) -> list[PresenceEvent]:
        """Time has passed."""
        events = []
        for instance, sighting in list(self._sightings.items()):
            silent = now - sighting.heard
            if silent > GONE_AFTER * sighting.ttl:
                del self._sightings[instance]
                events.append(PresenceEvent(Change.GONE, sighting.record))
            elif silent > sighting.ttl and not sighting.stale:
                self._sightings[instance] = replace(sighting, stale=True)
                events.append(PresenceEvent(Change.STALE, sighting.record))
        return events

    def shortest_ttl(self) -> float | None:
        """Of what is there; None when nothing is."""
        return min((sighting.ttl for sighting in self._sightings.values()), default=None)
