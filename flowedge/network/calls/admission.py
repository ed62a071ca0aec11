"""The way of every call into a server: caller, permission, room, request, service."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import grpc.aio

from flowedge.core.errors import FlowEdgeError
from flowedge.network.calls.call_counts import CallCounts, CountedCall
from flowedge.network.calls.caller import AnyCaller, CallerCheck, caller_at
from flowedge.network.calls.hidden_reasons import pause_s, told
from flowedge.network.calls.method_rules import RULES, MethodRule, rule_of
from flowedge.network.calls.receiving import RequestReceiver, parser_of
from flowedge.network.calls.refusal_log import RefusalLog
from flowedge.network.calls.settings import CallDeadlines, CallLimits
from flowedge.network.grpc_handlers import Context, entered_first
from flowedge.network.grpc_status import abort


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
        self._refusals = RefusalLog()

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
        caller, started = caller_at(context), time.monotonic()
        try:
            caller = self._check.caller(context)
            self._check.check(method, context)
            call = CountedCall(method, caller, rule, streaming or rule.lasts)
            self._count(call, context)
        except FlowEdgeError as error:
            self._refusals.refused(method, caller, error)
            await abort(context, error)
        try:
            async with self._check.watching(method, context):
                yield stream if streaming else await self._request(call, parse, context)
        except FlowEdgeError as error:  # of the request, of a check that ends the call, or of the service
            shown = told(method, caller, error)
            self._refusals.refused(method, caller, error)
            await asyncio.sleep(pause_s(error, shown, time.monotonic() - started))
            await abort(context, shown)

    def _count(self, call: CountedCall, context: Context) -> None:
        """Count a call until its end on the connection, which a caller that reads nothing puts off."""
        self._counts.enter(call)

        def leave(_: Any) -> None:
            self._counts.leave(call)

        context.add_done_callback(cast(Any, leave))  # the stub's type of it is a class of its own

    async def _request(
        self, call: CountedCall, parse: Callable[[bytes], Any] | None, context: Context
    ) -> Any:
        limit, key = call.rule.request_bytes, call.caller.key
        data = await self._receiver.receive(call.method, context, limit, key, reserved=call.reserved)
        return data if parse is None else parse(data)
