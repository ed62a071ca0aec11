"""Which agents are on the network, from what was heard and when. Times are seconds of one clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from flowedge.discovery.advertised_device import AdvertisedDevice

GONE_AFTER = 2.0  # lifetimes of an announcement without a sign of life
MAX_INSTANCES = 512  # that are remembered; more are ignored until some have left
MIN_TTL_S, MAX_TTL_S = 1.0, 3600.0  # bounds on the lifetime that a device gives its announcement


class Change(str, Enum):
    CAME = "came"
    CHANGED = "changed"
    RESTARTED = "restarted"
    LEFT = "left"  # said goodbye
    STALE = "stale"  # nothing was heard of it for the lifetime of its announcement
    RETURNED = "returned"  # was stale
    GONE = "gone"  # was stale for too long


@dataclass(frozen=True)
class PresenceEvent:
    change: Change
    device: AdvertisedDevice


@dataclass(frozen=True)
class Sighting:
    """An agent and when it was last heard of.

    Attributes:
        heard: time of the latest sign of life.
        ttl: seconds after which the announcement is stale.
    """

    device: AdvertisedDevice
    heard: float
    ttl: float
    stale: bool = False


class Presence:
    """What has been heard of each instance; every start of an agent is an instance with its own name."""

    def __init__(self) -> None:
        self._sightings: dict[str, Sighting] = {}
        self._of_id: dict[str, set[str]] = {}  # names of the instances with an id

    @property
    def sightings(self) -> list[Sighting]:
        """The agents that are present or stale, sorted by name, then id, then address."""
        return sorted(self._sightings.values(), key=lambda sighting: sighting.device)

    def knows(self, instance: str) -> bool:
        return instance in self._sightings

    def accepts(self, instance: str, device: AdvertisedDevice) -> bool:
        """Return whether an announcement can be taken in: it is known, replaces another, or there is room."""
        known = instance in self._sightings or bool(self._replaced(instance, device))
        return known or len(self._sightings) < MAX_INSTANCES

    def heard(self, instance: str, device: AdvertisedDevice, ttl: float, now: float) -> list[PresenceEvent]:
        """Take in an announcement; it replaces an instance of the same id that shares an address with it."""
        sighting = Sighting(device, now, min(max(ttl, MIN_TTL_S), MAX_TTL_S))
        previous = self._sightings.get(instance)
        earlier = self._replaced(instance, device)
        for name in (*earlier, instance):
            self._forget(name)
        self._sightings[instance] = sighting
        self._of_id.setdefault(device.id, set()).add(instance)
        if previous is None:
            return [PresenceEvent(Change.RESTARTED if earlier else Change.CAME, device)]
        if previous.stale:
            return [PresenceEvent(Change.RETURNED, device)]
        return [PresenceEvent(Change.CHANGED, device)] if previous.device != device else []

    def refreshed(self, instance: str, ttl: float, now: float) -> list[PresenceEvent]:
        """Take in a sign of life that repeats the latest announcement."""
        sighting = self._sightings.get(instance)
        return [] if sighting is None else self.heard(instance, sighting.device, ttl, now)

    def goodbye(self, instance: str) -> list[PresenceEvent]:
        sighting = self._forget(instance)
        return [] if sighting is None else [PresenceEvent(Change.LEFT, sighting.device)]

    def tick(self, now: float) -> list[PresenceEvent]:
        """Return what has become stale or gone by now."""
        events = []
        for instance, sighting in list(self._sightings.items()):
            silent = now - sighting.heard
            if silent > GONE_AFTER * sighting.ttl:
                self._forget(instance)
                events.append(PresenceEvent(Change.GONE, sighting.device))
            elif silent > sighting.ttl and not sighting.stale:
                self._sightings[instance] = replace(sighting, stale=True)
                events.append(PresenceEvent(Change.STALE, sighting.device))
        return events

    def shortest_ttl(self) -> float | None:
        """Return the shortest lifetime of the agents that are present or stale; None when there are none."""
        return min((sighting.ttl for sighting in self._sightings.values()), default=None)

    def _replaced(self, instance: str, device: AdvertisedDevice) -> list[str]:
        """Return the earlier instances of a device: of the same id, with an address in common."""
        addresses = set(device.addresses)
        return [
            name
            for name in self._of_id.get(device.id, ())
            if name != instance and not addresses.isdisjoint(self._sightings[name].device.addresses)
        ]

    def _forget(self, instance: str) -> Sighting | None:
        sighting = self._sightings.pop(instance, None)
        if sighting is not None:
            names = self._of_id[sighting.device.id]
            names.discard(instance)
            if not names:
                del self._of_id[sighting.device.id]
        return sighting
