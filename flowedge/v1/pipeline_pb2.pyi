from flowedge.v1 import bounds_pb2 as _bounds_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    DTYPE_INT32: _ClassVar[DType]
    DTYPE_FLOAT32: _ClassVar[DType]
    DTYPE_FLOAT16: _ClassVar[DType]
    DTYPE_BFLOAT16: _ClassVar[DType]
DTYPE_UNSPECIFIED: DType
DTYPE_INT32: DType
DTYPE_FLOAT32: DType
DTYPE_FLOAT16: DType
DTYPE_BFLOAT16: DType

class LinkRequest(_message.Message):
    __slots__ = ("pipeline", "device", "route", "resumes", "to_stage")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    TO_STAGE_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    device: str
    route: int
    resumes: bool
    to_stage: bool
    def __init__(self, pipeline: _Optional[str] = ..., device: _Optional[str] = ..., route: _Optional[int] = ..., resumes: _Optional[bool] = ..., to_stage: _Optional[bool] = ...) -> None: ...

class LinkOffer(_message.Message):
    __slots__ = ("device", "port", "token", "resume_token")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    device: str
    port: int
    token: bytes
    resume_token: bytes
    def __init__(self, device: _Optional[str] = ..., port: _Optional[int] = ..., token: _Optional[bytes] = ..., resume_token: _Optional[bytes] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("open", "segment", "prune", "close", "credit", "fault", "heartbeat", "tapped", "batch", "forget", "departed")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    PRUNE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    TAPPED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    DEPARTED_FIELD_NUMBER: _ClassVar[int]
    open: Open
    segment: Segment
    prune: Prune
    close: Close
    credit: Credit
    fault: Fault
    heartbeat: Heartbeat
    tapped: Tapped
    batch: Batch
    forget: Forget
    departed: float
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., segment: _Optional[_Union[Segment, _Mapping]] = ..., prune: _Optional[_Union[Prune, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., tapped: _Optional[_Union[Tapped, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., forget: _Optional[_Union[Forget, _Mapping]] = ..., departed: _Optional[float] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("session", "capacity", "drawing", "keeps_taps", "computed_alone", "prefix")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    DRAWING_FIELD_NUMBER: _ClassVar[int]
    KEEPS_TAPS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_ALONE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    session: str
    capacity: int
    drawing: Drawing
    keeps_taps: bool
    computed_alone: bool
    prefix: Prefix
    def __init__(self, session: _Optional[str] = ..., capacity: _Optional[int] = ..., drawing: _Optional[_Union[Drawing, _Mapping]] = ..., keeps_taps: _Optional[bool] = ..., computed_alone: _Optional[bool] = ..., prefix: _Optional[_Union[Prefix, _Mapping]] = ...) -> None: ...

class Prefix(_message.Message):
    __slots__ = ("source", "rows", "shared")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    source: str
    rows: int
    shared: int
    def __init__(self, source: _Optional[str] = ..., rows: _Optional[int] = ..., shared: _Optional[int] = ...) -> None: ...

class Drawing(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed", "prompt_rows", "features", "max_new_tokens", "eos")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ROWS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EOS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    prompt_rows: int
    features: bool
    max_new_tokens: int
    eos: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., prompt_rows: _Optional[int] = ..., features: _Optional[bool] = ..., max_new_tokens: _Optional[int] = ..., eos: _Optional[_Iterable[int]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("session", "number", "epoch", "committed", "first_row", "positions", "parents", "payload", "padding", "tokens", "drawn", "computed_rows", "computed_us", "waited_us")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_ROWS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_US_FIELD_NUMBER: _ClassVar[int]
    WAITED_US_FIELD_NUMBER: _ClassVar[int]
    session: str
    number: int
    epoch: int
    committed: bool
    first_row: int
    positions: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    payload: Tensor
    padding: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    drawn: _containers.RepeatedScalarFieldContainer[int]
    computed_rows: _containers.RepeatedScalarFieldContainer[int]
    computed_us: _containers.RepeatedScalarFieldContainer[int]
    waited_us: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[str] = ..., number: _Optional[int] = ..., epoch: _Optional[int] = ..., committed: _Optional[bool] = ..., first_row: _Optional[int] = ..., positions: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., payload: _Optional[_Union[Tensor, _Mapping]] = ..., padding: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., drawn: _Optional[_Iterable[int]] = ..., computed_rows: _Optional[_Iterable[int]] = ..., computed_us: _Optional[_Iterable[int]] = ..., waited_us: _Optional[_Iterable[int]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class Prune(_message.Message):
    __slots__ = ("session", "epoch", "source_len", "context", "accepted", "retained", "in_turn")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LEN_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FIELD_NUMBER: _ClassVar[int]
    IN_TURN_FIELD_NUMBER: _ClassVar[int]
    session: str
    epoch: int
    source_len: int
    context: int
    accepted: int
    retained: _containers.RepeatedScalarFieldContainer[int]
    in_turn: bool
    def __init__(self, session: _Optional[str] = ..., epoch: _Optional[int] = ..., source_len: _Optional[int] = ..., context: _Optional[int] = ..., accepted: _Optional[int] = ..., retained: _Optional[_Iterable[int]] = ..., in_turn: _Optional[bool] = ...) -> None: ...

class Tapped(_message.Message):
    __slots__ = ("session", "first", "rows")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    session: str
    first: int
    rows: Tensor
    def __init__(self, session: _Optional[str] = ..., first: _Optional[int] = ..., rows: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class StageReport(_message.Message):
    __slots__ = ("device", "segments", "rows_computed", "rows_trimmed", "rows_wasted", "aborted", "busy_s", "bytes_sent")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    ROWS_TRIMMED_FIELD_NUMBER: _ClassVar[int]
    ROWS_WASTED_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    device: str
    segments: int
    rows_computed: int
    rows_trimmed: int
    rows_wasted: int
    aborted: int
    busy_s: float
    bytes_sent: int
    def __init__(self, device: _Optional[str] = ..., segments: _Optional[int] = ..., rows_computed: _Optional[int] = ..., rows_trimmed: _Optional[int] = ..., rows_wasted: _Optional[int] = ..., aborted: _Optional[int] = ..., busy_s: _Optional[float] = ..., bytes_sent: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("session", "reports", "kept")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    session: str
    reports: _containers.RepeatedCompositeFieldContainer[StageReport]
    kept: int
    def __init__(self, session: _Optional[str] = ..., reports: _Optional[_Iterable[_Union[StageReport, _Mapping]]] = ..., kept: _Optional[int] = ...) -> None: ...

class Forget(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("session", "device", "code", "reason")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session: str
    device: str
    code: str
    reason: str
    def __init__(self, session: _Optional[str] = ..., device: _Optional[str] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence", "received")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    received: int
    def __init__(self, sequence: _Optional[int] = ..., received: _Optional[int] = ...) -> None: ...
