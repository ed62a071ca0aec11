"""A request beyond a limit of the agent is refused with an error that names the limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from flowedge.agent.agent_config import AgentConfig, AgentLimits
from flowedge.agent.agent_server import agent_server
from flowedge.agent.config_loading import load_config
from flowedge.cluster.process import Security
from flowedge.cluster.tls.call_admission import CallAdmission
from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.live.transport.listener import LinkListener
from flowedge.live.transport.server import StreamServer
from flowedge.network.grpc_status import from_status
from flowedge.v1 import generation_pb2
from tests.live.test_transport import SETTINGS, Client, Owner, open_link
from tests.support.loops import in_loop

WAIT_S = 60.0


@contextlib.asynccontextmanager
async def serving(limits: AgentLimits) -> AsyncIterator[tuple[str, Owner]]:
    """The health service, whose watches are calls that do not end, and the Pipeline service."""
    owner = Owner()
    server = grpc.aio.server(options=SETTINGS.channel_options, interceptors=[CallAdmission(None, limits)])
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    listener = LinkListener("bob", None)
    listener.listen("127.0.0.1", 0)
    server.add_generic_rpc_handlers((StreamServer("bob", lambda *_: owner, SETTINGS, listener).handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", owner
    finally:
        await server.stop(0)
        await listener.close()


@in_loop(WAIT_S)
async def test_calls_beyond_the_limit_are_refused() -> None:
    async with (
        serving(AgentLimits(calls=2, reserved_calls=0)) as (address, _),
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub, request = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest()
        calls = [stub.Watch(request, timeout=WAIT_S) for _ in range(2)]
        for call in calls:
            assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(request, timeout=WAIT_S)
        error = from_status(caught.value, "bob")
        assert isinstance(error, CapacityError)
        assert "2 calls open here is the maximum" in str(error)
        calls[0].cancel()
        while True:  # the server hears of the end soon; the test has a deadline
            with contextlib.suppress(grpc.aio.AioRpcError):
                await stub.Check(request, timeout=WAIT_S)
                return


@in_loop(WAIT_S)
async def test_streams_of_one_address_beyond_the_limit_are_refused() -> None:
    async with serving(AgentLimits(streams_per_peer=1)) as (address, _):
        first = await open_link(address, Client())
        with pytest.raises(CapacityError, match="you have 1 stream open here"):
            await open_link(address, Client())
        async with grpc.aio.insecure_channel(address) as channel:  # a call is no stream
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        await first.close()
        while True:
            with contextlib.suppress(CapacityError):
                await (await open_link(address, Client())).close()
                return


def test_long_prompts_are_refused_before_they_are_looked_at() -> None:
    limits = AgentLimits(prompt_bytes=4, prompt_tokens=3)
    limits.check_prompt_text("älk")
    limits.check_prompt_tokens(3)
    with pytest.raises(CapacityError, match="the prompt has 5 bytes, the maximum is 4"):
        limits.check_prompt_text("älks")
    with pytest.raises(CapacityError, match="the prompt has 4 tokens, the maximum is 3"):
        limits.check_prompt_tokens(4)


@pytest.mark.parametrize(("prompt_tokens", "is_taken"), [(1 << 17, False), (1 << 20, True)])
def test_prompts_beyond_a_message_of_links_are_taken_if_the_settings_say_so(
    prompt_tokens: int, is_taken: bool
) -> None:
    async def length(request: generation_pb2.GenerateRequest, _: Any) -> bytes:
        return str(len(request.prompt_ids.ids)).encode()

    async def test() -> None:
        config = AgentConfig(limits=AgentLimits(prompt_tokens=prompt_tokens))
        server = agent_server(config, Security(None), None)
        read = generation_pb2.GenerateRequest.FromString
        generate = grpc.unary_unary_rpc_method_handler(length, read)
        service = "flowedge.v1.Generation"
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {"Generate": generate}),)
        )
        port = server.listen("127.0.0.1:0", "bob")
        await server.start()
        ids = [1 << 20] * (1 << 20)  # 3 bytes each
        request = generation_pb2.GenerateRequest(prompt_ids=generation_pb2.TokenIds(ids=ids))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(f"/{service}/Generate")
            try:
                asked = call(request.SerializeToString(), timeout=WAIT_S)
                if is_taken:
                    assert await asked == str(len(ids)).encode()
                else:
                    with pytest.raises(grpc.aio.AioRpcError):
                        await asked
            finally:
                await server.stop(0)

    asyncio.run(test())


def test_limits_are_settings(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(
        "[limits]\nsessions = 3\nmessage_mib = 2\n[metrics]\nenabled = false\n[deadlines]\ndrain_s = 1.5\n",
        encoding="utf-8",
    )
    config = load_config({}, path).config
    assert config.limits == AgentLimits(sessions=3, message_mib=2)
    assert config.link.max_message_bytes == 2 << 20
    assert (config.metrics.enabled, config.deadlines.drain_s) == (False, 1.5)
    with pytest.raises(BadRequestError, match="calls is 0: input should be greater than or equal to 1"):
        AgentLimits(calls=0)
