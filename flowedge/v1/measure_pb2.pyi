from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class MeasureDeviceRequest(_message.Message):
    __slots__ = ("model", "drafter", "quant", "dtype", "repeats", "stack_mib", "protocol_version", "sizes", "only_stored", "drafters")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    QUANT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    STACK_MIB_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    ONLY_STORED_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    model: str
    drafter: str
    quant: str
    dtype: str
    repeats: int
    stack_mib: int
    protocol_version: int
    sizes: str
    only_stored: bool
    drafters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., drafter: _Optional[str] = ..., quant: _Optional[str] = ..., dtype: _Optional[str] = ..., repeats: _Optional[int] = ..., stack_mib: _Optional[int] = ..., protocol_version: _Optional[int] = ..., sizes: _Optional[str] = ..., only_stored: _Optional[bool] = ..., drafters: _Optional[_Iterable[str]] = ...) -> None: ...

class MeasureDeviceReply(_message.Message):
    __slots__ = ("progress", "measurement_json")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    progress: str
    measurement_json: str
    def __init__(self, progress: _Optional[str] = ..., measurement_json: _Optional[str] = ...) -> None: ...

class MeasureLinkRequest(_message.Message):
    __slots__ = ("peer", "peer_id", "bytes", "round_trips", "protocol_version")
    PEER_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIPS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    peer: str
    peer_id: str
    bytes: int
    round_trips: int
    protocol_version: int
    def __init__(self, peer: _Optional[str] = ..., peer_id: _Optional[str] = ..., bytes: _Optional[int] = ..., round_trips: _Optional[int] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class MeasureLinkReply(_message.Message):
    __slots__ = ("bytes", "seconds", "round_trips_s")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIPS_S_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    seconds: float
    round_trips_s: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., round_trips_s: _Optional[_Iterable[float]] = ...) -> None: ...

class SinkChunk(_message.Message):
    __slots__ = ("data", "warm_up")
    DATA_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    warm_up: bool
    def __init__(self, data: _Optional[bytes] = ..., warm_up: _Optional[bool] = ...) -> None: ...

class SinkReply(_message.Message):
    __slots__ = ("bytes", "seconds")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    seconds: float
    def __init__(self, bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
