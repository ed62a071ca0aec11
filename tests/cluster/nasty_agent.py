"""An agent of an attacker that puts escape sequences into every text it can send."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from flowedge.network.grpc_status import ERROR_KEY
from flowedge.v1 import agent_pb2, cluster_pb2, generation_pb2, measure_pb2, pipeline_pb2, weights_pb2
from flowedge.version import PROTOCOL_VERSION

FORGED = "FORGED-LINE"
NASTY = f"\x1b]0;owned\x07\x9b31m[red]\x1b[2J\u202e\u2066\u200b\r\n{FORGED}\n[/blue]"
FILES = (agent_pb2, cluster_pb2, generation_pb2, measure_pb2, pipeline_pb2, weights_pb2)
MESSAGES_OF_A_STREAM = 3
DESCRIBE = "/flowedge.v1.Agent/Describe"
_DEPTH = 4  # of messages in messages
_Made = TypeVar("_Made", bound=Message)


def services() -> Iterator[tuple[str, Any]]:
    """Return the path and the descriptor of every method."""
    for module in FILES:
        file: FileDescriptor = module.DESCRIPTOR
        for service in file.services_by_name.values():
            for method in service.methods:
                yield f"/{service.full_name}/{method.name}", method


def texts(descriptor: Descriptor, seen: frozenset[str] = frozenset()) -> set[str]:
    """Return the names of all text fields that a message can hold."""
    found: set[str] = set()
    for field in descriptor.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            found.add(field.full_name)
        elif field.message_type is not None and field.message_type.full_name not in seen:
            found |= texts(field.message_type, seen | {descriptor.full_name})
    return found


def fill(message: _Made, which: int, depth: int = _DEPTH) -> _Made:
    """Put escape sequences into every text of a message; of alternatives, the one with the number `which`."""
    for field in message.DESCRIPTOR.fields:
        group = field.containing_oneof
        if (
            group is not None
            and len(group.fields) > 1
            and group.fields[which % len(group.fields)] is not field
        ):
            continue
        _fill_field(message, field, which, depth)
    return message


def _fill_field(message: Message, field: FieldDescriptor, which: int, depth: int) -> None:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        if depth and not field.message_type.GetOptions().map_entry:
            inner = getattr(message, field.name)
            fill(inner.add() if field.is_repeated else inner, which, depth - 1)
            if not field.is_repeated:
                inner.SetInParent()
    elif field.name == "config":
        _set(message, field, json.dumps({"model": NASTY, "tokenizer": NASTY, "drafter": [NASTY]}))
    elif field.name == "sampling":
        _set(message, field, json.dumps({"stop": [NASTY]}))
    elif field.type == FieldDescriptor.TYPE_STRING:
        _set(message, field, NASTY)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        _set(message, field, bytes(32))
    elif field.name == "protocol_version":
        setattr(message, field.name, PROTOCOL_VERSION)
    elif field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        _set(message, field, 1.5)
    elif field.type not in (FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_ENUM):
        _set(message, field, 1 + which)
    elif field.type == FieldDescriptor.TYPE_BOOL:
        _set(message, field, which % 2 == 1)


def _set(message: Message, field: FieldDescriptor, value: Any) -> None:
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


class NastyServices(grpc.GenericRpcHandler):
    """Serves every method: with replies full of escape sequences, or with such errors."""

    def __init__(self, fails: Callable[[str], bool], *, idle: bool) -> None:
        self.called: set[str] = set()
        self._fails, self._idle = fails, idle
        self._methods = dict(services())

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        path = details.method
        method = self._methods.get(path)
        if method is None:
            return None
        self.called.add(path)
        reply_type = GetMessageClass(method.output_type)

        def replies(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            if self._fails(path):
                carried = json.dumps({"code": NASTY, "device": NASTY, "reason": NASTY}).encode()
                context.abort_with_status(_NastyStatus(((ERROR_KEY, carried),)))
            for which in range(MESSAGES_OF_A_STREAM):
                made = fill(reply_type(), which)
                if path == DESCRIBE:
                    made.instance += str(id(self))  # so that two of these are two agents
                if self._idle and path == DESCRIBE:
                    made.ClearField("role")
                yield made

        def reply(request: Any, context: grpc.ServicerContext) -> Any:
            return next(replies(request, context))

        parse = GetMessageClass(method.input_type).FromString
        streams = (
            "stream" if method.client_streaming else "unary",
            "stream" if method.server_streaming else "unary",
        )
        make = getattr(grpc, f"{streams[0]}_{streams[1]}_rpc_method_handler")
        return make(replies if method.server_streaming else reply, parse, reply_type.SerializeToString)


class _NastyStatus(grpc.Status):
    def __init__(self, trailing: tuple[tuple[str, bytes], ...]) -> None:
        self.code = grpc.StatusCode.FAILED_PRECONDITION
        self.details = NASTY
        self.trailing_metadata = trailing


@contextmanager
def nasty_agent(
    fails: Callable[[str], bool] = lambda path: False, *, idle: bool = False
) -> Iterator[tuple[NastyServices, str]]:
    """Serve as a nasty agent in plaintext on loopback; yield the services and the address.

    fails: whether the method at a path answers with an error. idle: whether it claims to have no role.
    """
    server = grpc.server(ThreadPoolExecutor(8))
    served = NastyServices(fails, idle=idle)
    server.add_generic_rpc_handlers((served,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield served, f"127.0.0.1:{port}"
    finally:
        server.stop(grace=0).wait(5)
