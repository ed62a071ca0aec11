"""Whether the stages of a pipeline keep what they tap of draft rows, decided by the round trip to them."""

from __future__ import annotations

import time
from collections.abc import Mapping

import grpc.aio

from flowedge.agent.roles.coordinator import PlannedRoute
from flowedge.agent.roles.other_agents import all_or_none
from flowedge.cluster.tls.channels import open_channel
from flowedge.core.pipeline_config import LINK_BYTES_PER_S
from flowedge.models.taps import Taps, keeping_pays, retained_values, taps_within
from flowedge.network.grpc_status import from_status
from flowedge.network.link_settings import LinkSettings
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc

_EXCHANGES = 5  # with each stage, of which the quickest counts


async def choose_retained_taps(
    route: PlannedRoute,
    taps: Taps,
    value_bytes: int,
    settings: LinkSettings,
    members: Mapping[str, str],
    *,
    draws: bool,
) -> tuple[tuple[int, int], ...]:
    """Return what the stages of a route keep of each draft row (see DraftNodeSpec.kept_taps).

    Links between stages are taken to have the rate of a gigabit.

    Args:
        value_bytes: of a value of a hidden state on a link.
        members: by address, the URI in the certificate of the device (see Member.uri).
        draws: whether the last stage draws tokens. What it taps travels with the rows that it returns.

    Raises:
        AccessError: when another member answers.
        DeviceLostError: when a stage does not answer.
    """
    keeping = route.stages[: len(route.stages) - int(draws)]
    blocks = [(stage.content.start, stage.content.stop) for stage in keeping]
    hidden = int(route.checkpoint.config.hidden_size)
    places = retained_values(hidden, taps, blocks)
    if not places:
        return ()
    tapping = [
        stage.address for stage in keeping if taps_within(taps, stage.content.start, stage.content.stop)
    ]
    times = await all_or_none(round_trip_s(address, settings, members.get(address)) for address in tapping)
    value_s = [value_bytes / LINK_BYTES_PER_S] * len(blocks)
    return places if keeping_pays(hidden, taps, blocks, value_s, max(times)) else ()


async def round_trip_s(address: str, settings: LinkSettings, member: str | None) -> float:
    """Return the seconds from a question to the agent at an address until its answer is here.

    Raises:
        AccessError: when another member answers there.
        DeviceLostError: when it does not answer.
    """
    times = []
    try:
        async with await open_channel(address, settings.channel_options, member=member) as channel:
            agent = rpc.AgentStub(channel)
            for _ in range(_EXCHANGES):
                asked = time.monotonic()
                await agent.Clock(pb.ClockRequest(), timeout=settings.connect_s)
                times.append(time.monotonic() - asked)
    except grpc.aio.AioRpcError as error:
        raise from_status(error, address) from error
    return min(times)
