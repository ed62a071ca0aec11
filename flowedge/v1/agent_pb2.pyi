from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Activity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTIVITY_UNSPECIFIED: _ClassVar[Activity]
    ACTIVITY_DRAFT: _ClassVar[Activity]
    ACTIVITY_VERIFY: _ClassVar[Activity]
    ACTIVITY_PREFILL: _ClassVar[Activity]
    ACTIVITY_FORWARD: _ClassVar[Activity]
    ACTIVITY_ABORTED: _ClassVar[Activity]
    ACTIVITY_CACHE: _ClassVar[Activity]
    ACTIVITY_TRANSFER: _ClassVar[Activity]
    ACTIVITY_PRUNE: _ClassVar[Activity]
    ACTIVITY_REQUEST: _ClassVar[Activity]
ACTIVITY_UNSPECIFIED: Activity
ACTIVITY_DRAFT: Activity
ACTIVITY_VERIFY: Activity
ACTIVITY_PREFILL: Activity
ACTIVITY_FORWARD: Activity
ACTIVITY_ABORTED: Activity
ACTIVITY_CACHE: Activity
ACTIVITY_TRANSFER: Activity
ACTIVITY_PRUNE: Activity
ACTIVITY_REQUEST: Activity

class MembershipRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MembershipReply(_message.Message):
    __slots__ = ("certificate", "revocation_lists")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    REVOCATION_LISTS_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    revocation_lists: bytes
    def __init__(self, certificate: _Optional[bytes] = ..., revocation_lists: _Optional[bytes] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("quant",)
    QUANT_FIELD_NUMBER: _ClassVar[int]
    quant: str
    def __init__(self, quant: _Optional[str] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("id", "name", "kind", "address", "memory_total", "memory_available", "protocol_version", "version", "role", "layer_start", "layer_stop", "resident_bytes", "weight_bytes", "cache_bytes", "stage_addresses", "pipeline", "middles", "certified_role", "instance", "compute", "draft_tokens", "sessions", "waiting", "context_tokens", "request_bytes", "family", "capabilities", "temperature", "config", "not_ready", "revocation_number", "sampling", "no_chat_template", "power", "standby", "stands_by_for", "computing_s", "plan", "proposal", "throttled")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LAYER_START_FIELD_NUMBER: _ClassVar[int]
    LAYER_STOP_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STAGE_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    MIDDLES_FIELD_NUMBER: _ClassVar[int]
    CERTIFIED_ROLE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_FIELD_NUMBER: _ClassVar[int]
    REVOCATION_NUMBER_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    NO_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    POWER_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    STANDS_BY_FOR_FIELD_NUMBER: _ClassVar[int]
    COMPUTING_S_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    kind: str
    address: str
    memory_total: int
    memory_available: int
    protocol_version: int
    version: str
    role: str
    layer_start: int
    layer_stop: int
    resident_bytes: int
    weight_bytes: int
    cache_bytes: int
    stage_addresses: _containers.RepeatedScalarFieldContainer[str]
    pipeline: str
    middles: _containers.RepeatedCompositeFieldContainer[Middle]
    certified_role: str
    instance: str
    compute: Compute
    draft_tokens: int
    sessions: int
    waiting: int
    context_tokens: int
    request_bytes: int
    family: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    temperature: float
    config: str
    not_ready: str
    revocation_number: int
    sampling: str
    no_chat_template: bool
    power: float
    standby: str
    stands_by_for: str
    computing_s: float
    plan: str
    proposal: str
    throttled: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., kind: _Optional[str] = ..., address: _Optional[str] = ..., memory_total: _Optional[int] = ..., memory_available: _Optional[int] = ..., protocol_version: _Optional[int] = ..., version: _Optional[str] = ..., role: _Optional[str] = ..., layer_start: _Optional[int] = ..., layer_stop: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., cache_bytes: _Optional[int] = ..., stage_addresses: _Optional[_Iterable[str]] = ..., pipeline: _Optional[str] = ..., middles: _Optional[_Iterable[_Union[Middle, _Mapping]]] = ..., certified_role: _Optional[str] = ..., instance: _Optional[str] = ..., compute: _Optional[_Union[Compute, _Mapping]] = ..., draft_tokens: _Optional[int] = ..., sessions: _Optional[int] = ..., waiting: _Optional[int] = ..., context_tokens: _Optional[int] = ..., request_bytes: _Optional[int] = ..., family: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., temperature: _Optional[float] = ..., config: _Optional[str] = ..., not_ready: _Optional[str] = ..., revocation_number: _Optional[int] = ..., sampling: _Optional[str] = ..., no_chat_template: _Optional[bool] = ..., power: _Optional[float] = ..., standby: _Optional[str] = ..., stands_by_for: _Optional[str] = ..., computing_s: _Optional[float] = ..., plan: _Optional[str] = ..., proposal: _Optional[str] = ..., throttled: _Optional[str] = ...) -> None: ...

class Compute(_message.Message):
    __slots__ = ("device", "processor", "dtypes", "reason", "cuda_graphs")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CUDA_GRAPHS_FIELD_NUMBER: _ClassVar[int]
    device: str
    processor: str
    dtypes: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    cuda_graphs: bool
    def __init__(self, device: _Optional[str] = ..., processor: _Optional[str] = ..., dtypes: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., cuda_graphs: _Optional[bool] = ...) -> None: ...

class Middle(_message.Message):
    __slots__ = ("model", "addresses")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    model: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class StageRole(_message.Message):
    __slots__ = ("pipeline", "layer_start", "layer_stop", "downstream", "protocol_version", "fingerprint", "taps", "route", "vocab_size", "weights", "members", "draft_node_s", "config", "recovers", "before_stage")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    LAYER_START_FIELD_NUMBER: _ClassVar[int]
    LAYER_STOP_FIELD_NUMBER: _ClassVar[int]
    DOWNSTREAM_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TAPS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NODE_S_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    RECOVERS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_STAGE_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    layer_start: int
    layer_stop: int
    downstream: str
    protocol_version: int
    fingerprint: str
    taps: _containers.RepeatedScalarFieldContainer[int]
    route: int
    vocab_size: int
    weights: WeightSources
    members: PipelineMembers
    draft_node_s: float
    config: str
    recovers: bool
    before_stage: bool
    def __init__(self, pipeline: _Optional[str] = ..., layer_start: _Optional[int] = ..., layer_stop: _Optional[int] = ..., downstream: _Optional[str] = ..., protocol_version: _Optional[int] = ..., fingerprint: _Optional[str] = ..., taps: _Optional[_Iterable[int]] = ..., route: _Optional[int] = ..., vocab_size: _Optional[int] = ..., weights: _Optional[_Union[WeightSources, _Mapping]] = ..., members: _Optional[_Union[PipelineMembers, _Mapping]] = ..., draft_node_s: _Optional[float] = ..., config: _Optional[str] = ..., recovers: _Optional[bool] = ..., before_stage: _Optional[bool] = ...) -> None: ...

class PipelineMembers(_message.Message):
    __slots__ = ("upstream", "draft_node", "downstream")
    UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NODE_FIELD_NUMBER: _ClassVar[int]
    DOWNSTREAM_FIELD_NUMBER: _ClassVar[int]
    upstream: str
    draft_node: str
    downstream: str
    def __init__(self, upstream: _Optional[str] = ..., draft_node: _Optional[str] = ..., downstream: _Optional[str] = ...) -> None: ...

class WeightSources(_message.Message):
    __slots__ = ("manifest", "name", "draft_node", "peers", "quantised")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NODE_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    QUANTISED_FIELD_NUMBER: _ClassVar[int]
    manifest: str
    name: str
    draft_node: str
    peers: _containers.RepeatedScalarFieldContainer[str]
    quantised: str
    def __init__(self, manifest: _Optional[str] = ..., name: _Optional[str] = ..., draft_node: _Optional[str] = ..., peers: _Optional[_Iterable[str]] = ..., quantised: _Optional[str] = ...) -> None: ...

class DraftNodeRole(_message.Message):
    __slots__ = ("pipeline", "stages", "protocol_version", "middles", "config", "standby", "chooses", "hands_on")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MIDDLES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    CHOOSES_FIELD_NUMBER: _ClassVar[int]
    HANDS_ON_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    stages: _containers.RepeatedScalarFieldContainer[str]
    protocol_version: int
    middles: _containers.RepeatedCompositeFieldContainer[Middle]
    config: str
    standby: str
    chooses: bool
    hands_on: bool
    def __init__(self, pipeline: _Optional[str] = ..., stages: _Optional[_Iterable[str]] = ..., protocol_version: _Optional[int] = ..., middles: _Optional[_Iterable[_Union[Middle, _Mapping]]] = ..., config: _Optional[str] = ..., standby: _Optional[str] = ..., chooses: _Optional[bool] = ..., hands_on: _Optional[bool] = ...) -> None: ...

class StandByRequest(_message.Message):
    __slots__ = ("role", "origin", "owner", "instance")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    role: DraftNodeRole
    origin: str
    owner: str
    instance: str
    def __init__(self, role: _Optional[_Union[DraftNodeRole, _Mapping]] = ..., origin: _Optional[str] = ..., owner: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class StandByReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("stages",)
    STAGES_FIELD_NUMBER: _ClassVar[int]
    stages: _containers.RepeatedCompositeFieldContainer[StageRole]
    def __init__(self, stages: _Optional[_Iterable[_Union[StageRole, _Mapping]]] = ...) -> None: ...

class PrepareReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RoleProgress(_message.Message):
    __slots__ = ("device", "message", "ready", "transfer", "exact", "draws", "room", "draft_node")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    DRAWS_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NODE_FIELD_NUMBER: _ClassVar[int]
    device: str
    message: str
    ready: bool
    transfer: Transfer
    exact: bool
    draws: bool
    room: StageRoom
    draft_node: str
    def __init__(self, device: _Optional[str] = ..., message: _Optional[str] = ..., ready: _Optional[bool] = ..., transfer: _Optional[_Union[Transfer, _Mapping]] = ..., exact: _Optional[bool] = ..., draws: _Optional[bool] = ..., room: _Optional[_Union[StageRoom, _Mapping]] = ..., draft_node: _Optional[str] = ...) -> None: ...

class StageRoom(_message.Message):
    __slots__ = ("total_rows", "session_rows", "sessions", "on_demand", "state_rows", "page_saving", "sharing")
    TOTAL_ROWS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ROWS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_FIELD_NUMBER: _ClassVar[int]
    STATE_ROWS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SAVING_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    total_rows: int
    session_rows: int
    sessions: int
    on_demand: bool
    state_rows: int
    page_saving: int
    sharing: int
    def __init__(self, total_rows: _Optional[int] = ..., session_rows: _Optional[int] = ..., sessions: _Optional[int] = ..., on_demand: _Optional[bool] = ..., state_rows: _Optional[int] = ..., page_saving: _Optional[int] = ..., sharing: _Optional[int] = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("done_bytes", "total_bytes", "bytes_per_s", "left_s")
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    done_bytes: int
    total_bytes: int
    bytes_per_s: float
    left_s: float
    def __init__(self, done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., bytes_per_s: _Optional[float] = ..., left_s: _Optional[float] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("pipeline",)
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    def __init__(self, pipeline: _Optional[str] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TimelineRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class TimelineReply(_message.Message):
    __slots__ = ("activity", "start_s", "end_s", "rows", "dropped")
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    activity: _containers.RepeatedScalarFieldContainer[Activity]
    start_s: _containers.RepeatedScalarFieldContainer[float]
    end_s: _containers.RepeatedScalarFieldContainer[float]
    rows: _containers.RepeatedScalarFieldContainer[int]
    dropped: int
    def __init__(self, activity: _Optional[_Iterable[_Union[Activity, str]]] = ..., start_s: _Optional[_Iterable[float]] = ..., end_s: _Optional[_Iterable[float]] = ..., rows: _Optional[_Iterable[int]] = ..., dropped: _Optional[int] = ...) -> None: ...

class ClockRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClockReply(_message.Message):
    __slots__ = ("now_s", "wall_s")
    NOW_S_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    now_s: float
    wall_s: float
    def __init__(self, now_s: _Optional[float] = ..., wall_s: _Optional[float] = ...) -> None: ...
