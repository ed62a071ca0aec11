"""A draft node inside a program of this process, for one that needs the target's rows, not only its text."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import grpc.aio

from flowedge.agent.config.agent_config import AgentConfig
from flowedge.agent.device_info import DeviceInfo
from flowedge.agent.main import STOP_GRACE_S, bind
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.agent.roles.role import RoleHolder
from flowedge.agent.roles.weight_sharing import serve_weights
from flowedge.core.errors import DeadlineError
from flowedge.core.request import Failed, Finished, Output, Request
from flowedge.live.compute_thread import ComputeThread
from flowedge.live.transport.server import StreamServer
from flowedge.security.process import security_for
from flowedge.security.tls.serving import new_server
from flowedge.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from flowedge.agent.roles.draft_models import DraftModels
    from flowedge.drafting.drafter import Drafter
    from flowedge.live.live_draft_node import RunningRequest
    from flowedge.models.layers.taps import Taps

T = TypeVar("T")
OnProgress = Callable[[str, str], None]  # device, what it is doing
MARGIN_S = 10.0  # beyond the deadlines of what is waited for, which then has said nothing


class EmbeddedDraftNode:
    """The draft node of one pipeline, on an event loop and a compute lane of its own threads.

    Its methods block, and are called from one thread. Use `embedded_draft_node` to have one.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="draft-node", daemon=True)
        self._server: grpc.aio.Server | None = None
        self._lane: ComputeThread | None = None
        self._roles: RoleHolder | None = None
        self._role: DraftNodeRole | None = None

    @property
    def models(self) -> DraftModels:
        """Tokenizer, LM head and drafter. DeviceError when the pipeline is not set up."""
        return self._serving().serving()[1]

    def start(self, role: pb.DraftNodeRole, taps: Taps, report: OnProgress) -> None:
        """Set the pipeline up; `taps` are its own (see models/layers/taps.py).

        Raises the error of the device that fails, DeadlineError when loading takes too long.
        """
        self._thread.start()
        seconds = self._config.deadlines.load_s + MARGIN_S
        self._wait(self._start(role, taps, report), seconds, "the pipeline was not set up")

    def stop(self) -> None:
        """Release the stages and end all threads."""
        try:
            seconds = self._config.deadlines.stop_s + MARGIN_S
            self._wait(self._stop(), seconds, "the pipeline was not released")
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(MARGIN_S)
            if not self._thread.is_alive():
                self._loop.close()

    def begin(self, request: Request) -> EmbeddedRequest:
        """Have a request served. Errors as LiveDraftNode.generate and DraftNodeRole.check_memory."""

        async def begin() -> RunningRequest:
            role = self._serving()
            role.check_memory(len(request.prompt) + (0 if request.rows_only else request.max_new_tokens))
            return role.serving()[0].generate(request)

        return EmbeddedRequest(self, self._wait(begin(), MARGIN_S, "the request was not taken"))

    def draft_with(self, drafter: Drafter) -> None:
        """See DraftNodeRole.draft_with."""

        async def draft_with() -> None:
            self._serving().draft_with(drafter)

        self._wait(draft_with(), MARGIN_S, "the drafter was not taken")

    def next_output(self, generation: RunningRequest) -> Output:
        """The next output of a request; raises the error that it ends with."""
        # The pipeline has a deadline of its own, which ends the request with an error.
        seconds = self._config.deadlines.progress_s + MARGIN_S
        output = self._wait(generation.next_output(seconds), seconds + MARGIN_S, "the pipeline gave nothing")
        if output is None:
            raise DeadlineError(f"the pipeline gave nothing within {seconds:g} s")
        if isinstance(output, Failed):
            raise output.error
        return output

    def end(self, generation: RunningRequest) -> None:
        """Call off what is still going on of a request."""

        async def end() -> None:
            self._serving().serving()[0].end(generation)

        self._wait(end(), MARGIN_S, "the request was not ended")

    def _serving(self) -> DraftNodeRole:
        assert self._role is not None, "started"
        return self._role

    async def _start(self, request: pb.DraftNodeRole, taps: Taps, report: OnProgress) -> None:
        config = self._config
        security = security_for(request.stages[0], None)
        server, _ = new_server(config.link.channel_options, security)
        self._server = server
        identity = DeviceInfo.of(config, bind(server, config, security))
        self._lane = ComputeThread(identity.name)
        roles = self._roles = RoleHolder(identity.name)
        library = serve_weights(server, identity.name, config)
        streams = StreamServer(identity.name, roles.streams_of, config.link)
        server.add_generic_rpc_handlers((streams.handler(),))
        await server.start()

        async def tell(device: str, text: str, transfer: pb.Transfer | None = None) -> None:  # noqa: ARG001
            if text:
                report(device, text)

        self._role = DraftNodeRole(
            identity.name, identity.address_for, request, config, self._lane, library, taps=taps
        )
        await roles.take(self._role)
        await self._role.load(tell)

    async def _stop(self) -> None:
        if self._roles is not None:
            await self._roles.release("")
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
        if self._lane is not None:
            self._lane.stop(self._config.deadlines.stop_s)

    def _wait(self, awaited: Coroutine[Any, Any, T], seconds: float, what: str) -> T:
        future = asyncio.run_coroutine_threadsafe(awaited, self._loop)
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError as error:
            raise DeadlineError(f"{what} within {seconds:g} s") from error
        finally:
            future.cancel()  # for an interrupted wait; nothing happens when it is done


@dataclass(frozen=True)
class EmbeddedRequest:
    """One request on its way through the pipeline."""

    _node: EmbeddedDraftNode
    _generation: RunningRequest

    def outputs(self) -> Iterator[Output]:
        """All outputs, the last of which is a Finished; raises the error that the request ends with.

        DeviceLostError names the device that was lost.
        """
        finished = False
        while not finished:
            output = self._node.next_output(self._generation)
            finished = isinstance(output, Finished)
            yield output

    def end(self) -> None:
        """Call off what is still going on; to be called once, also when it has ended."""
        self._node.end(self._generation)


@contextmanager
def embedded_draft_node(
    role: pb.DraftNodeRole, config: AgentConfig, *, taps: Taps, report: OnProgress
) -> Iterator[EmbeddedDraftNode]:
    """A draft node whose pipeline is ready; the stages are released with the context.

    Errors as EmbeddedDraftNode.start.
    """
    node = EmbeddedDraftNode(config)
    try:
        node.start(role, taps, report)
        yield node
    finally:
        node.stop()
