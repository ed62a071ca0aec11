"""Who is there, stale or gone; and who cannot be told apart."""

from __future__ import annotations

from dataclasses import replace

from flowedge.client.survey import duplicates
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.presence import MAX_INSTANCES, Change, Presence, PresenceEvent

KITCHEN = AdvertisedDevice("kitchen", "id-1", "10.0.0.1:7", "test", 1, 1, "0.1.0", instance="a")
TTL = 30.0


def changes(events: list[PresenceEvent]) -> list[Change]:
    return [event.change for event in events]


def test_a_silent_device_is_stale_then_gone() -> None:
    presence = Presence()
    assert changes(presence.heard("a", KITCHEN, TTL, 0.0)) == [Change.CAME]
    assert presence.tick(TTL) == []
    assert changes(presence.tick(TTL + 1)) == [Change.STALE]
    assert presence.tick(TTL + 2) == []
    assert [sighting.stale for sighting in presence.sightings] == [True]
    assert changes(presence.tick(2 * TTL + 1)) == [Change.GONE]
    assert presence.sightings == []
    assert presence.shortest_ttl() is None


def test_a_sign_of_life_brings_a_stale_device_back() -> None:
    presence = Presence()
    presence.heard("a", KITCHEN, TTL, 0.0)
    presence.tick(TTL + 1)
    assert changes(presence.refreshed("a", TTL, TTL + 2)) == [Change.RETURNED]
    assert presence.tick(2 * TTL + 1) == []
    assert presence.refreshed("unknown", TTL, 0.0) == []


def test_goodbye_is_believed_at_once() -> None:
    presence = Presence()
    presence.heard("a", KITCHEN, TTL, 0.0)
    assert changes(presence.goodbye("a")) == [Change.LEFT]
    assert presence.goodbye("a") == []


def test_a_restart_without_a_goodbye_replaces_the_earlier_start() -> None:
    presence = Presence()
    presence.heard("a", KITCHEN, TTL, 0.0)
    again = replace(KITCHEN, instance="b")
    assert changes(presence.heard("b", again, TTL, 1.0)) == [Change.RESTARTED]
    assert [sighting.device for sighting in presence.sightings] == [again]


def test_two_devices_of_one_id_are_both_there() -> None:
    presence = Presence()
    presence.heard("a", KITCHEN, TTL, 0.0)
    clone = replace(KITCHEN, address="10.0.0.2:7", instance="b")
    assert changes(presence.heard("b", clone, TTL, 0.0)) == [Change.CAME]
    assert len(presence.sightings) == 2


def test_a_changed_announcement_is_said_and_a_repeated_one_is_not() -> None:
    presence = Presence()
    presence.heard("a", KITCHEN, TTL, 0.0)
    assert presence.heard("a", KITCHEN, TTL, 1.0) == []
    moved = replace(KITCHEN, address="10.0.0.9:7")
    assert changes(presence.heard("a", moved, TTL, 2.0)) == [Change.CHANGED]


def test_a_device_cannot_claim_to_be_good_for_ever_or_for_no_time() -> None:
    presence = Presence()
    presence.heard("a", KITCHEN, 1e9, 0.0)
    presence.heard("b", replace(KITCHEN, id="id-2"), 0.0, 0.0)
    assert sorted(sighting.ttl for sighting in presence.sightings) == [1.0, 3600.0]


def test_duplicates_are_named_with_their_addresses() -> None:
    clone = replace(KITCHEN, address="10.0.0.2:7")
    namesake = replace(KITCHEN, id="id-3", address="10.0.0.3:7")
    other = replace(KITCHEN, id="id-4", name="attic", address="10.0.0.4:7")
    same_id, same_name = duplicates([KITCHEN, clone, namesake, other, KITCHEN])
    assert str(same_id) == "the id 'id-1' is that of kitchen (10.0.0.1:7) and of kitchen (10.0.0.2:7)"
    assert (same_name.what, same_name.value, len(same_name.devices)) == ("name", "kitchen", 2)
    assert duplicates([KITCHEN, other]) == []


def test_a_flood_of_announcements_takes_bounded_memory_and_drops_nobody_who_is_known() -> None:
    presence = Presence()
    presence.heard("kitchen", KITCHEN, TTL, 0.0)
    for number in range(2 * MAX_INSTANCES):
        fake = replace(KITCHEN, id=f"fake{number}", address=f"10.0.1.1:{number + 1}")
        if presence.accepts(f"fake{number}", fake):
            presence.heard(f"fake{number}", fake, TTL, 0.0)
    assert len(presence.sightings) == MAX_INSTANCES
    assert presence.knows("kitchen")
    assert presence.accepts("kitchen", KITCHEN)
    assert presence.accepts("restarted", KITCHEN), "it replaces the kitchen's earlier start"
    assert changes(presence.heard("restarted", KITCHEN, TTL, 1.0)) == [Change.RESTARTED]
    assert not presence.knows("kitchen")
    presence.goodbye("fake0")
    assert presence.accepts("new", replace(KITCHEN, id="new", address="10.0.2.1:1"))
