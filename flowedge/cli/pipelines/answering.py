"""The agents of the network that answer."""

from __future__ import annotations

import asyncio
import logging

from flowedge.agent.config_loading import load_config
from flowedge.cli.pipelines.planned_pipeline import NoAgentFoundError, describe
from flowedge.client import Device
from flowedge.client.announced import AnnouncedReply, ask_announced, errors_of_answer
from flowedge.client.device import IDLE
from flowedge.cluster.process import current
from flowedge.core.errors import AccessError, FlowEdgeError, ProtocolError
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.discovery import discover
from flowedge.network.address import is_loopback

_log = logging.getLogger(__name__)


def find_devices(discover_s: float, least: int) -> dict[str, Device]:
    """Search the network; return the agents that answer, by address, as `ask_all` does."""
    settings = load_config().config.discovery
    advertised = asyncio.run(discover(discover_s, settings=settings))
    return ask_all(advertised, settings.peers, discover_s, least)


def ask_all(
    advertised: list[AdvertisedDevice], peers: tuple[str, ...], discover_s: float, least: int
) -> dict[str, Device]:
    """Return the agents that answer, by address; agents on loopback if fewer than `least` are on the network.

    Args:
        peers: addresses that the configuration names.
        discover_s: the seconds of the search, to name in errors.

    Raises:
        NoAgentFoundError: when no agent is announced.
        FlowEdgeError: when announced agents do not answer; the error of the first.
        ProtocolError: when all agents run other versions of the protocol.
        AccessError: when all agents belong to other clusters.
    """
    if not advertised and not peers:
        raise NoAgentFoundError(
            f"no agent answered within {discover_s:g} s: start agents with `flowedge agent`, name "
            "them with --peers host:port,..., or use --stages N to start them here for this run"
        )
    ours = _of_this_protocol(_of_this_cluster(advertised, peers), peers)
    named = _answering_peers(peers)
    known = {device.instance for device in named.values() if device.instance}
    found = [device for device in ours if device.instance not in known]
    answers, problem = _first_answers(found)
    if not answers and not named and problem is not None:
        raise problem
    return named | _reachable(answers, least - len(named))


def _of_this_protocol(devices: list[AdvertisedDevice], peers: tuple[str, ...]) -> list[AdvertisedDevice]:
    """Return the devices that speak this machine's protocol; the log names the others."""
    mismatches = [device.mismatch for device in devices if device.mismatch]
    if mismatches and len(mismatches) == len(devices) and not peers:
        raise ProtocolError(mismatches[0])
    for mismatch in mismatches:
        _log.warning("left out: %s", mismatch)
    return [device for device in devices if not device.mismatch]


def _first_answers(devices: list[AdvertisedDevice]) -> tuple[dict[str, Device], FlowEdgeError | None]:
    """Return the devices that answer, by address, and the error of the first device that does not.

    Announcements are not proof of anything: a device that does not answer is left out, and named in the log.
    """
    answers: dict[str, Device] = {}
    problems: list[FlowEdgeError] = []
    for device, outcome in ask_announced(devices, describe, lambda found: found).items():
        if isinstance(outcome, AnnouncedReply):
            answers[outcome.address] = outcome.reply
        else:
            _log.warning("%s is left out: %s", device.name, outcome)
            problems.append(outcome)
    return answers, next(iter(problems), None)


def _of_this_cluster(advertised: list[AdvertisedDevice], peers: tuple[str, ...]) -> list[AdvertisedDevice]:
    """Return the devices of this machine's cluster; the log names the others."""
    # Not by id: anybody can announce the id of another device.
    foreign = {device: current().foreign(device.name, device.cluster) for device in advertised}
    reasons = [reason for reason in foreign.values() if reason is not None]
    for reason in reasons:
        _log.warning("ignored: %s", reason)
    if reasons and len(reasons) == len(advertised) and not peers:
        raise AccessError(
            f"all agents that answered belong to other clusters: {'; '.join(reasons)}. Join their cluster "
            "with a token (flowedge join), or have them join this machine's"
        )
    return [device for device in advertised if foreign[device] is None]


def _answering_peers(peers: tuple[str, ...]) -> dict[str, Device]:
    """Return the agents named in the configuration that answer, by address."""
    devices = {}
    for peer in peers:
        try:
            with errors_of_answer(peer):
                devices[peer] = describe(peer)
        except FlowEdgeError as error:
            _log.warning("the peer %s of the configuration is left out: %s", peer, error)
    return devices


def split_idle(devices: dict[str, Device]) -> tuple[list[str], str]:
    """Return the addresses of idle agents, and "name (role)" of the others for people."""
    idle = [address for address, device in devices.items() if device.role == IDLE]
    busy = [f"{device.name} ({device.role})" for device in devices.values() if device.role != IDLE]
    return idle, ", ".join(busy)


def _reachable(answers: dict[str, Device], least: int) -> dict[str, Device]:
    """Return devices that can reach each other: on the network or, if there are too few, on loopback."""
    networked = {address: device for address, device in answers.items() if not is_loopback(address)}
    here = {address: device for address, device in answers.items() if is_loopback(address)}
    return networked if len(networked) >= least or not here else here
