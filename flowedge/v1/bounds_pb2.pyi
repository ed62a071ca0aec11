from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor
MOST_FIELD_NUMBER: _ClassVar[int]
most: _descriptor.FieldDescriptor

class Bounds(_message.Message):
    __slots__ = ("bytes", "times", "values", "opaque")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    OPAQUE_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    times: int
    values: int
    opaque: bool
    def __init__(self, bytes: _Optional[int] = ..., times: _Optional[int] = ..., values: _Optional[int] = ..., opaque: _Optional[bool] = ...) -> None: ...
