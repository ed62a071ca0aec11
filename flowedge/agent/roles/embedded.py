"""A draft node inside a program of this process, which needs the target's rows and not only its text."""

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
from flowedge.agent.roles.agent import STOP_GRACE_S, Agent
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.core.errors import DeadlineError
from flowedge.core.request import Failed, Finished, Output, Request
from flowedge.live.live_draft_node import RunningRequest
from flowedge.security.process import security_for
from flowedge.security.tls.serving import new_server
from flowedge.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from flowedge.drafting.drafter import Drafter
    from flowedge.engine.draft_models import DraftModels
    from flowedge.models.layers.taps import Taps

T = TypeVar("T")
OnProgress = Callable[[str, str], None]  # called with a device and what it is doing
MARGIN_S = 10.0  # beyond the deadline of an operation, which should have ended it with an error


class EmbeddedDraftNode:
    """The draft node of one pipeline, on an event loop and a compute thread of its own.

    Its methods block, and are called from one thread. `embedded_draft_node` makes one.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="draft-node", daemon=True)
        self._server: grpc.aio.Server | None = None
        self._agent: Agent | None = None
        self._role: DraftNodeRole | None = None

    @property
    def progress_s(self) -> float:
        """The seconds without any progress after which a request is ended."""
        return self._config.deadlines.progress_s

    @property
    def models(self) -> DraftModels:
        """Tokenizer, LM head and drafter. Raises DeviceError when the pipeline is not set up."""
        return self.taken_role().serving()[1]

    def start(self, role: pb.DraftNodeRole, taps: Taps, report: OnProgress) -> None:
        """Set the pipeline up; `taps` are its own (see models/layers/taps.py).

        Raises the error of the device that fails, or DeadlineError when loading takes too long.
        """
        self._thread.start()
        seconds = self._config.deadlines.load_s + MARGIN_S
        self.wait(self._start(role, taps, report), seconds, "the pipeline was not set up")

    def stop(self) -> None:
        """Release the stages and end all threads."""
        try:
            self.wait(self._stop(), self._config.deadlines.stop_s + MARGIN_S, "the pipeline was not released")
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(MARGIN_S)
            if not self._thread.is_alive():
                self._loop.close()

    def begin(self, request: Request) -> EmbeddedRequest:
        """Have a request served.

        Raises what LiveDraftNode.prepare, DraftNodeRole.check_memory and LiveDraftNode.start raise.
        """

        async def begin() -> RunningRequest:
            role = self.taken_role()
            live, _ = role.serving()
            session = live.prepare(request)
            role.check_memory(session.capacity)
            return live.start(session)

        return EmbeddedRequest(self, self.wait(begin(), MARGIN_S, "the request was not taken"))

    def draft_with(self, drafter: Drafter) -> None:
        """Have requests from now on use a drafter; see DraftNodeRole.draft_with."""

        async def draft_with() -> None:
            self.taken_role().draft_with(drafter)

        self.wait(draft_with(), MARGIN_S, "the drafter was not taken")

    def taken_role(self) -> DraftNodeRole:
        """Return the role, once the pipeline was started."""
        assert self._role is not None, "started"
        return self._role

    def wait(self, awaited: Coroutine[Any, Any, T], seconds: float, what: str) -> T:
        """Return the result of a coroutine on the event loop.

        Raises:
            DeadlineError: when it takes longer than `seconds`; `what` begins its text.
        """
        future = asyncio.run_coroutine_threadsafe(awaited, self._loop)
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError as error:
            raise DeadlineError(f"{what} within {seconds:g} s") from error
        finally:
            future.cancel()  # has an effect only when the wait was interrupted

    async def _start(self, request: pb.DraftNodeRole, taps: Taps, report: OnProgress) -> None:
        security = security_for(request.stages[0], None)
        self._server, _ = new_server(self._config.link.channel_options, security)
        self._agent = Agent.listening(self._server, self._config, security)
        await self._server.start()

        async def report_text(device: str, text: str, transfer: pb.Transfer | None = None) -> None:  # noqa: ARG001
            if text:
                report(device, text)

        self._role = DraftNodeRole(self._agent, request, taps)
        await self._agent.roles.take(self._role)
        await self._role.load(report_text)

    async def _stop(self) -> None:
        if self._agent is not None:
            await self._agent.roles.release("")
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
        if self._agent is not None:
            self._agent.compute.stop(self._config.deadlines.stop_s)


@dataclass(frozen=True)
class EmbeddedRequest:
    """One request on its way through the pipeline."""

    _node: EmbeddedDraftNode
    _running: RunningRequest

    def outputs(self) -> Iterator[Output]:
        """Yield all outputs, the last of which is a Finished.

        The error that the request ends with is raised; a DeviceLostError names the device that was lost.
        """
        # The pipeline has a deadline of its own, which ends the request with an error.
        seconds = self._node.progress_s + MARGIN_S
        what = "the pipeline gave nothing"
        output: Output | None = None
        while not isinstance(output, Finished):
            output = self._node.wait(self._running.next_output(seconds), seconds + MARGIN_S, what)
            if output is None:
                raise DeadlineError(f"{what} within {seconds:g} s")
            if isinstance(output, Failed):
                raise output.error
            yield output

    def end(self) -> None:
        """Forget the request; it is cancelled if it has not ended. To be called once."""

        async def end() -> None:
            self._node.taken_role().serving()[0].end(self._running)

        self._node.wait(end(), MARGIN_S, "the request was not ended")


@contextmanager
def embedded_draft_node(
    role: pb.DraftNodeRole, config: AgentConfig, *, taps: Taps, report: OnProgress
) -> Iterator[EmbeddedDraftNode]:
    """Yield a draft node whose pipeline is ready; the stages are released when the context is left.

    Raises what EmbeddedDraftNode.start raises.
    """
    node = EmbeddedDraftNode(config)
    try:
        node.start(role, taps, report)
        yield node
    finally:
        node.stop()
