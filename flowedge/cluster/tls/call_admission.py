"""The way of every call into a server: caller, permission, room, request, service."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, cast

import grpc
import grpc.aio

from flowedge.cluster.tls.call_limits import RULES, CallDeadlines, CallLimits, MethodRule, rule_of
from flowedge.cluster.tls.receiving import RequestReceiver, parser_of
from flowedge.core.errors import CapacityError, FlowEdgeError
from flowedge.core.log_fields import about
from flowedge.core.plain_text import counted
from flowedge.network.grpc_handlers import Context, entered_first
from flowedge.network.grpc_status import abort
from flowedge.network.log_rate import LogRate, more

_RETRY_S = 1.0  # after which a caller may try again where other calls have to end first

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caller:
    """Who has made a call.

    Attributes:
        key: what the caller's calls are counted by: the member of its certificate, its host in plaintext.
        address: where the call comes from.
        name: of the member, with its role; "" in plaintext.
        is_admin: whether the certificate is an admin's.
        is_device: whether the caller may be a device of a pipeline.
    """

    key: str
    address: str
    name: str = ""
    is_admin: bool = False
    is_device: bool = True

    def __str__(self) -> str:
        return f"{self.name} at {self.address}" if self.name else self.address


class CallerCheck(Protocol):
    """Tells who calls, and refuses a call that the caller may not make."""

    def caller(self, context: Context) -> Caller:
        """Return who has made a call. Raises AccessError when that cannot be told."""

    def check(self, method: str, context: Context) -> None:
        """Raise AccessError if the caller may not call a method now."""

    def ends_when_revoked(self, method: str, context: Context) -> AbstractAsyncContextManager[None]:
        """Return the context in which the call is served; the check may end the call meanwhile."""


class AnyCaller:
    """The check in plaintext: everyone may call everything."""

    def caller(self, context: Context) -> Caller:
        return caller_at(context)

    def check(self, method: str, context: Context) -> None:
        """See CallerCheck."""

    def ends_when_revoked(self, method: str, context: Context) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        return nullcontext()


def caller_at(context: Context) -> Caller:
    """Return a caller that is known by its address only."""
    peer = str(context.peer())
    return Caller(peer.rpartition(":")[0] or peer, peer)


@dataclass(frozen=True)
class CountedCall:
    """A call as it is counted."""

    method: str
    caller: Caller
    rule: MethodRule
    streaming: bool

    @property
    def reserved(self) -> bool:
        """Whether the call may use the reserve of pipelines and admins."""
        return self.caller.is_admin or (self.rule.for_pipelines and self.caller.is_device)

    def shares(self, limits: CallLimits) -> dict[tuple[str, str], int]:
        """Return the most calls at the same time, by a caller, or "" for all clients, and a kind of call."""
        caller, rule = self.caller.key, self.rule
        kind = "call for pipelines" if rule.for_pipelines else "call"
        of_method = f"call of {self.method.removeprefix('/')}"
        most = {(caller, kind): limits.calls_per_caller}
        if self.streaming:
            most[caller, "stream"] = limits.streams_per_peer
        if rule.per_caller is not None:
            most[caller, of_method] = rule.per_caller
        if rule.of_clients is not None and not self.reserved:
            most["", of_method] = rule.of_clients
        return most


class CallCounts:
    """Counts calls; one caller cannot take the room of others, nor clients that of pipelines and admins.

    Attributes:
        total: number of calls that are going on.
    """

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self.total = 0
        self._counts: Counter[tuple[str, str]] = Counter()

    def enter(self, call: CountedCall) -> None:
        """Count a call that begins; `leave` has to be called at its end.

        Raises:
            CapacityError: when there is no room for the call; it is not counted then.
        """
        shares = call.shares(self._limits)
        for (caller, kind), most in shares.items():
            if self._counts[caller, kind] >= most:
                raise _refusal(caller, kind, most)
        if self.total >= self._most(call):
            raise _later(f"{counted(self.total, 'call')} open here is the maximum; try later")
        self.total += 1
        self._counts.update(shares.keys())

    def leave(self, call: CountedCall) -> None:
        """Take note of the end of a call that was counted."""
        self.total -= 1
        for counter in call.shares(self._limits):
            self._counts[counter] -= 1
            if not self._counts[counter]:
                del self._counts[counter]

    def _most(self, call: CountedCall) -> int:
        """Return how many calls may be going on for this one to be taken."""
        limits = self._limits
        reserve = min(limits.reserved_calls, limits.calls // 2)
        if call.caller.is_admin:
            return limits.calls
        return limits.calls - (reserve // 4 if call.reserved else reserve)


def _refusal(caller: str, kind: str, most: int) -> CapacityError:
    noun, _, of_what = kind.partition(" ")
    taken = f"{counted(most, noun)} {of_what}".rstrip() + " open here, which is the maximum"
    if not caller:
        return _later(f"clients have {taken}; try later")
    problem = f"you have {taken}; end one"
    return _later(problem) if of_what.startswith("of ") else CapacityError(problem)


def _later(problem: str) -> CapacityError:
    """Return the error for a call for which there is room when others have ended."""
    error = CapacityError(problem)
    error.retry_after_s = _RETRY_S
    return error


class CallAdmission(grpc.aio.ServerInterceptor):
    """Admits calls to a server, or to several servers of one process, which share the room then."""

    def __init__(
        self,
        check: CallerCheck | None = None,
        limits: CallLimits = CallLimits(),  # noqa: B008 (frozen)
        rules: Mapping[str, MethodRule] = RULES,
        receive_s: float = CallDeadlines().receive_s,
    ) -> None:
        """check: of callers; None for everyone may call everything."""
        self._check = check or AnyCaller()
        self._counts = CallCounts(limits)
        self._rules = rules
        self._receiver = RequestReceiver(receive_s)
        self._refusals = LogRate()  # of a caller, method and error: the first, then a line a minute

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method)
        rule = rule_of(self._rules, method)
        parse = None
        if handler.request_deserializer is not None:
            parse = parser_of(method, handler.request_deserializer, rule.request_bytes)
        enter = functools.partial(self._served, method, rule, handler.request_streaming, parse)
        return entered_first(handler, method, enter, parse if handler.request_streaming else None)

    @asynccontextmanager
    async def _served(
        self,
        method: str,
        rule: MethodRule,
        streaming: bool,
        parse: Callable[[bytes], Any] | None,
        stream: AsyncIterator[Any],
        context: Context,
    ) -> AsyncIterator[Any]:
        """Admit a call, and give its service the request or the stream of requests."""
        caller = caller_at(context)
        try:
            caller = self._check.caller(context)
            self._check.check(method, context)
            call = CountedCall(method, caller, rule, streaming or rule.lasts)
            self._count(call, context)
        except FlowEdgeError as error:
            await self._refuse(method, caller, error, context)
        try:
            async with self._check.ends_when_revoked(method, context):
                yield stream if streaming else await self._request(call, parse, context)
        except FlowEdgeError as error:  # of the request, of a check that ends the call, or of the service
            await self._refuse(method, caller, error, context)

    async def _refuse(self, method: str, caller: Caller, error: FlowEdgeError, context: Context) -> NoReturn:
        """End a call with an error, and log it unless there were many of the caller, method and error."""
        called, peer = method.removeprefix("/"), caller.name or caller.address
        silent = self._refusals.due((caller.key, called, error.code))
        if silent is not None:
            fields = about(event="call_refused", peer=peer, reason=str(error), code=error.code)
            _log.warning("refused %s from %s: %s%s", called, caller, error, more(silent), extra=fields)
        await abort(context, error)

    def _count(self, call: CountedCall, context: Context) -> None:
        """Count a call until its end on the connection, which a caller that reads nothing puts off."""
        self._counts.enter(call)

        def leave(_: Any) -> None:
            self._counts.leave(call)

        context.add_done_callback(cast(Any, leave))  # the stub's type of it is a class of its own

    async def _request(
        self, call: CountedCall, parse: Callable[[bytes], Any] | None, context: Context
    ) -> Any:
        limit = call.rule.request_bytes
        data = await self._receiver.receive(call.method, context, limit, call.caller.key)
        return data if parse is None else parse(data)
