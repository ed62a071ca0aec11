"""A draft node inside a program of this process, which needs the target's rows and not only its text."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from flowedge.agent.agent_config import AgentConfig
from flowedge.agent.agent_server import agent_server
from flowedge.agent.roles.agent import STOP_GRACE_S, Agent
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.cluster.process import security_for
from flowedge.cluster.tls.serving import guard_of
from flowedge.core.errors import DeadlineError
from flowedge.core.request import Failed, Finished, Opened, Output, Request, Waiting
from flowedge.device.compute import find_compute
from flowedge.live.running_request import RunningRequest
from flowedge.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from flowedge.drafting.drafter import Drafter
    from flowedge.engine.executors.draft_models import DraftModels
    from flowedge.models.taps import Taps

T = TypeVar("T")
OnProgress = Callable[[str, str], None]  # called with a device and what it is doing
MARGIN_S = 10.0  # beyond the deadline of an operation, which should have ended it with an error


class EmbeddedDraftNode:
    """The draft node of one pipeline, on an event loop and a compute thread of its own.

    Its methods block, and are called from one thread. `embedded_draft_node` makes one.

    Attributes:
        progress_s: the seconds without any progress after which a request is ended.
        queue_s: the seconds after which a request is ended that has no room.
    """

    def __init__(self, config: AgentConfig) -> None:
        self.progress_s = config.deadlines.progress_s
        self.queue_s = config.deadlines.queue_s
        self._config = config
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="draft-node", daemon=True)
        self._release = contextlib.AsyncExitStack()
        self._role: DraftNodeRole | None = None

    @property
    def models(self) -> DraftModels:
        """Tokenizer, LM head and drafter. Raises DeviceError when the pipeline is not set up."""
        return self._taken_role().serving()[1]

    def start(self, role: pb.DraftNodeRole, taps: Taps, report: OnProgress) -> None:
        """Set the pipeline up; `taps` are its own (see models/taps.py).

        Raises the error of the device that fails, or DeadlineError when loading takes too long.
        """
        self._thread.start()
        seconds = self._config.deadlines.load_s + MARGIN_S
        self.wait(self._start(role, taps, report), seconds, "the pipeline was not set up")

    def stop(self) -> None:
        seconds = self._config.deadlines.stop_s + MARGIN_S
        try:
            self.wait(self._release.aclose(), seconds, "the pipeline was not released")
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(MARGIN_S)
            if not self._thread.is_alive():
                self._loop.close()

    def begin(self, request: Request) -> EmbeddedRequest:
        """Have a request served. Raises what DraftNodeRole.start raises."""
        return EmbeddedRequest(self, self.call(lambda role: role.start(request)))

    def draft_with(self, drafter: Drafter) -> None:
        """Have requests from now on use a drafter; see DraftNodeRole.draft_with."""
        self.call(lambda role: role.draft_with(drafter))

    def call(self, function: Callable[[DraftNodeRole], T]) -> T:
        """Return the result of a function of the role that was taken, which runs on the event loop."""

        async def run() -> T:
            return function(self._taken_role())

        return self.wait(run(), MARGIN_S, "the draft node did not answer")

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

    def _taken_role(self) -> DraftNodeRole:
        assert self._role is not None, "started"
        return self._role

    async def _start(self, request: pb.DraftNodeRole, taps: Taps, report: OnProgress) -> None:
        security = security_for(request.stages[0], None)
        guard, config = guard_of(security), self._config
        server = agent_server(config, security, guard)
        compute = await asyncio.to_thread(find_compute, self._config.agent.device)
        agent = Agent.listening(server, self._config, security, compute)
        self._release.callback(agent.compute.stop, self._config.deadlines.stop_s)
        self._release.push_async_callback(server.stop, STOP_GRACE_S)
        self._release.push_async_callback(agent.listener.close)
        self._release.push_async_callback(agent.roles.release, "")
        await server.start()

        async def report_text(device: str, text: str, transfer: pb.Transfer | None = None) -> None:  # noqa: ARG001
            if text:
                report(device, text)

        self._role = DraftNodeRole(agent, request, taps)
        await agent.roles.take(self._role)
        await self._role.take_up(report_text)


@dataclass(frozen=True)
class EmbeddedRequest:
    """One request on its way through the pipeline."""

    _node: EmbeddedDraftNode
    _running: RunningRequest

    def outputs(self) -> Iterator[Output]:
        """Yield all outputs but those about the queue; the last output is a Finished.

        The error that the request ends with is raised; a DeviceLostError names the device that was lost.
        """
        # The pipeline has a deadline of its own, which ends the request with an error.
        seconds = max(self._node.progress_s, self._node.queue_s) + MARGIN_S
        what = "the pipeline gave nothing"
        output: Output | None = None
        while not isinstance(output, Finished):
            output = self._node.wait(self._running.next_output(seconds), seconds + MARGIN_S, what)
            if output is None:
                raise DeadlineError(f"{what} within {seconds:g} s")
            if isinstance(output, Failed):
                raise output.error
            if not isinstance(output, Waiting | Opened):
                yield output

    def end(self) -> None:
        """Forget the request; it is cancelled if it has not ended. To be called once."""
        self._node.call(lambda role: role.serving()[0].end(self._running))


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
