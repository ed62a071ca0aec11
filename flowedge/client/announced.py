"""Asks announced agents what they are, whatever else is announced on the network."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from flowedge.client.device import Device
from flowedge.core.errors import DeviceError, FlowEdgeError
from flowedge.discovery.advertised_device import AdvertisedDevice

LIMIT_S = 20.0  # after which no further agent is asked
AT_ONCE = 32  # agents that are asked at the same time
_ADDRESSES = 4  # of one device that are tried

Reply = TypeVar("Reply")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AnnouncedReply(Generic[Reply]):
    """What an announced agent answered, and the address at which it did."""

    address: str
    reply: Reply


def ask_announced(
    devices: Sequence[AdvertisedDevice],
    ask: Callable[[str, str], Reply],
    device_of: Callable[[Reply], Device],
    *,
    known: Collection[str] = (),
    limit_s: float = LIMIT_S,
) -> Mapping[AdvertisedDevice, AnnouncedReply[Reply] | FlowEdgeError]:
    """Return the reply of each device at its first address that answers, or the first error.

    Anybody on the network can announce any number of agents that do not answer. So agents that are known to
    answer are asked first, then the others in an order that nobody can foresee; and the time is limited.

    Args:
        ask: asks the agent at an address, whose certificate must have the name in the second argument.
        device_of: returns the device that has replied; it has to have the announced id.
        known: ids of devices that answered before.
        limit_s: seconds after which no further agent is asked.
    """
    deadline = time.monotonic() + limit_s
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        asked = {
            device: pool.submit(_ask_first, device, ask, device_of, deadline)
            for device in query_order(devices, known)
        }
    return {device: asked[device].result() for device in devices}


def query_order(devices: Sequence[AdvertisedDevice], known: Collection[str]) -> list[AdvertisedDevice]:
    """Return devices in the order in which they are asked: known ids first, the others by chance."""
    shuffled = random.sample(devices, len(devices))
    return sorted(shuffled, key=lambda device: device.id not in known)


@contextmanager
def errors_of_answer(address: str) -> Iterator[None]:
    """Turn any error about the answer of the agent at an address into a FlowEdgeError, so others are asked.

    Raises:
        FlowEdgeError: when the agent does not answer as an agent does.
    """
    try:
        yield
    except FlowEdgeError:
        raise
    except Exception as error:
        _log.debug("the answer of %s cannot be read", address, exc_info=error)
        raise DeviceError(address, f"its answer cannot be read: {type(error).__name__}") from error


def _ask_first(
    advertised: AdvertisedDevice,
    ask: Callable[[str, str], Reply],
    device_of: Callable[[Reply], Device],
    deadline: float,
) -> AnnouncedReply[Reply] | FlowEdgeError:
    problems: list[FlowEdgeError] = []
    for address in advertised.addresses[:_ADDRESSES]:
        if time.monotonic() > deadline:
            reason = "it was not asked, because too many others did not answer"
            problems.append(DeviceError(advertised.name, reason))
            break
        try:
            with errors_of_answer(address):
                reply = ask(address, advertised.name)
        except FlowEdgeError as error:
            _log.info("%s is not reached at %s: %s", advertised.name, address, error)
            problems.append(error)
            continue
        found = device_of(reply)
        if found.id == advertised.id:
            return AnnouncedReply(address, reply)
        problems.append(_other_device(address, advertised, found))
    return problems[0]


def _other_device(address: str, advertised: AdvertisedDevice, found: Device) -> DeviceError:
    """Return the error for an advertised address at which another device answers."""
    return DeviceError(
        advertised.name,
        f"advertises {address}, where {found.name} (id {found.id}) answers, not {advertised.id}",
    )
