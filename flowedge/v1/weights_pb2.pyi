from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HaveRequest(_message.Message):
    __slots__ = ("objects",)
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, objects: _Optional[_Iterable[bytes]] = ...) -> None: ...

class HaveReply(_message.Message):
    __slots__ = ("held", "sending")
    HELD_FIELD_NUMBER: _ClassVar[int]
    SENDING_FIELD_NUMBER: _ClassVar[int]
    held: bytes
    sending: int
    def __init__(self, held: _Optional[bytes] = ..., sending: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("object", "offset", "doubted")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DOUBTED_FIELD_NUMBER: _ClassVar[int]
    object: bytes
    offset: int
    doubted: bool
    def __init__(self, object: _Optional[bytes] = ..., offset: _Optional[int] = ..., doubted: _Optional[bool] = ...) -> None: ...

class ObjectChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class CatalogueRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CatalogueReply(_message.Message):
    __slots__ = ("models", "cache_bytes", "cache_max_bytes", "sent_bytes", "received_bytes")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHE_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[KnownModel]
    cache_bytes: int
    cache_max_bytes: int
    sent_bytes: int
    received_bytes: int
    def __init__(self, models: _Optional[_Iterable[_Union[KnownModel, _Mapping]]] = ..., cache_bytes: _Optional[int] = ..., cache_max_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ...) -> None: ...

class KnownModel(_message.Message):
    __slots__ = ("id", "name", "quant", "total_bytes", "here_bytes", "in_directory")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUANT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    HERE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IN_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    name: str
    quant: str
    total_bytes: int
    here_bytes: int
    in_directory: bool
    def __init__(self, id: _Optional[bytes] = ..., name: _Optional[str] = ..., quant: _Optional[str] = ..., total_bytes: _Optional[int] = ..., here_bytes: _Optional[int] = ..., in_directory: _Optional[bool] = ...) -> None: ...

class LookRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class LookReply(_message.Message):
    __slots__ = ("here",)
    HERE_FIELD_NUMBER: _ClassVar[int]
    here: bool
    def __init__(self, here: _Optional[bool] = ...) -> None: ...
