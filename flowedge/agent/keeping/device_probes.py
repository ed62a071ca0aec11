"""Asks the devices of a lost pipeline what they are, and says in which state the missing ones are."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from flowedge.agent.keeping.choice import RecentLosses
from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.other_agents import describe
from flowedge.core.errors import DeadlineError, DeviceLostError, DrainingError, FlowEdgeError
from flowedge.core.ids import stage_name
from flowedge.core.log_fields import about
from flowedge.network.deadline import within
from flowedge.network.device_state import (
    AWAY,
    DOUBTFUL,
    FLAPS,
    THERE,
    ConnectResult,
    DeviceLoss,
    DeviceState,
    Probe,
    loss_of,
    slowest,
    state_of,
    without_network,
)
from flowedge.network.ports import try_connect

ANSWER_S = 1.0  # for a device to say that it is there; a board on a LAN takes milliseconds
SILENT_ANSWER_S = 0.5  # for a device that was silent for seconds already, while answers wait

_log = logging.getLogger(__name__)


class DeviceProbes:
    """What the devices of a pipeline answered the last time that they were asked.

    Attributes:
        addresses: of the devices that have ever answered, by name.
        own: addresses of this device, if it was a stage and is to lead the pipeline now.
    """

    def __init__(
        self,
        agent: Agent,
        lost: DeviceLostError | None,
        met: Mapping[str, tuple[str, str]],
        losses: RecentLosses,
    ) -> None:
        """
        lost: how a device was lost; None if that is not known.
        met: name and instance of each device before that, by address.
        losses: the losses before, to which this one is added.
        """
        self._agent = agent
        self._lost = lost
        self._met = dict(met)
        self._last: dict[str, Probe] = {}
        self._said: DeviceState | None = None
        self.addresses = {name: address for address, (name, _) in met.items()}
        self.own: set[str] = set()
        self._stays = stage_name(agent.name) in self.addresses  # a draft node that was a stage as well
        # One that is restarted says so before.
        counts = self.lost_address and not isinstance(lost, DrainingError)
        self._losses = losses.add(self.lost_address, time.monotonic()) if counts else 1
        self._announce([])

    @property
    def lost_address(self) -> str:
        """The address of the device that was lost; "" if it is not known."""
        return "" if self._lost is None else self.addresses.get(self._lost.device, "")

    @property
    def state(self) -> DeviceState:
        """The state of the lost device."""
        known = self._met.get(self.lost_address, ("", ""))
        return state_of(self._lost, self._last.get(self.lost_address), known[1], self._losses)

    @property
    def doubtful(self) -> set[str]:
        """The address of the lost device if it answers and may be lost again at once."""
        return {self.lost_address} if self.lost_address and self.state in DOUBTFUL else set()

    @property
    def flaps(self) -> bool:
        """Whether the lost device comes and goes, so that it is not taken back soon."""
        return self._losses >= FLAPS

    @property
    def silence_s(self) -> float:
        """The seconds for which the lost device had been silent; infinity if there is no use in waiting."""
        if self.state in AWAY:
            return float("inf")
        return 0.0 if self._lost is None else self._lost.silence_s

    async def ask(self, addresses: Iterable[str], wanted: Collection[str]) -> set[str]:
        """Return those of some addresses at which a device answers; take note of the states of the wanted."""
        asked = list(addresses)
        probes = await asyncio.gather(*map(self._ask, asked))
        self._last |= dict(zip(asked, probes, strict=True))
        self._find_slow()
        usable = {address for address, probe in zip(asked, probes, strict=True) if probe.instance}
        usable -= self.own
        self._announce([address for address in wanted if address not in usable | self.own])
        return usable

    def _find_slow(self) -> None:
        """Take the device that does not come to an end for the lost one, if the pipeline stands still."""
        lost, of_pipeline = self._lost, {each: self._last[each] for each in self._met if each in self._last}
        if lost is None or not lost.stands_still or self.lost_address:
            return
        if found := slowest(of_pipeline):
            seconds = of_pipeline[found].computing_s
            reason = f"nothing comes back: it has been computing one segment for {seconds:.0f} s"
            self._lost = DeviceLostError(self._met[found][0], reason)
            self._lost.stands_still = True

    async def _ask(self, address: str) -> Probe:
        lost = self._lost if address == self.lost_address else None
        was_silent = lost is not None and (lost.silence_s or lost.by_neighbour)
        answer_s = SILENT_ANSWER_S if was_silent else ANSWER_S
        connecting = asyncio.ensure_future(try_connect(address, answer_s))
        try:
            asking = describe(address, self._agent.config.link)
            device = await within(answer_s, asking, f"{address} did not answer")
        except DeadlineError:
            return Probe(await connecting)
        except FlowEdgeError:  # at once: it may have ended since it took the connection
            return Probe(await try_connect(address, answer_s))
        finally:
            connecting.cancel()
        if device.id == self._agent.info.id:
            if not self._stays:
                self.own.add(address)
        else:
            self.addresses[device.name] = address
        return Probe(ConnectResult.OPEN, device.instance or device.id, device.computing_s)

    def _announce(self, missing: Sequence[str]) -> None:
        """Have others hear of the losses: the log, requests that wait, and whoever asks this device."""
        agent = self._agent
        others = [probe for address, probe in self._last.items() if address not in self.own]
        losses = [loss for loss in (without_network(agent.name, others), self._loss()) if loss is not None]
        for address in missing:
            name = self._met.get(address, ("", ""))[0] or address
            if self._lost is None or name != self._lost.device:
                losses.append(loss_of(name, state_of(None, self._last.get(address)), ""))
        agent.loss = losses[0] if losses else None
        obstacles = [str(loss) for loss in losses if loss.state not in THERE]
        if obstacles or self._said is None:
            agent.obstacle = "; ".join(obstacles)
        if agent.loss is not None and agent.loss.state not in (self._said, DeviceState.LOST):
            if self._said is None:
                agent.observer.lost(agent.loss.state)
            self._said = agent.loss.state
            fields = about(
                event="device_lost",
                peer=agent.loss.device,
                state=str(self._said),
                reason=agent.loss.reason,
            )
            _log.warning("a device of the pipeline is lost", extra=fields)

    def _loss(self) -> DeviceLoss | None:
        lost = self._lost
        return None if lost is None else loss_of(lost.device, self.state, lost.reason)
