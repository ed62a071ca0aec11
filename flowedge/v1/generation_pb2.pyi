from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerateRequest(_message.Message):
    __slots__ = ("prompt", "prompt_ids", "conversation", "text", "request_id", "parse_answer", "options", "answered", "answers_as", "goes_on")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PARSE_ANSWER_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_AS_FIELD_NUMBER: _ClassVar[int]
    GOES_ON_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    prompt_ids: TokenIds
    conversation: Conversation
    text: str
    request_id: str
    parse_answer: bool
    options: str
    answered: _containers.RepeatedScalarFieldContainer[int]
    answers_as: str
    goes_on: bool
    def __init__(self, prompt: _Optional[str] = ..., prompt_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., conversation: _Optional[_Union[Conversation, _Mapping]] = ..., text: _Optional[str] = ..., request_id: _Optional[str] = ..., parse_answer: _Optional[bool] = ..., options: _Optional[str] = ..., answered: _Optional[_Iterable[int]] = ..., answers_as: _Optional[str] = ..., goes_on: _Optional[bool] = ...) -> None: ...

class Conversation(_message.Message):
    __slots__ = ("messages", "tools", "tool_choice", "tool_name", "single_tool_call", "template_values")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    TOOL_NAME_FIELD_NUMBER: _ClassVar[int]
    SINGLE_TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_VALUES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    tools: _containers.RepeatedScalarFieldContainer[str]
    tool_choice: str
    tool_name: str
    single_tool_call: bool
    template_values: str
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., tools: _Optional[_Iterable[str]] = ..., tool_choice: _Optional[str] = ..., tool_name: _Optional[str] = ..., single_tool_call: _Optional[bool] = ..., template_values: _Optional[str] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "reasoning", "tool_calls", "tool_call_id", "name")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    reasoning: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    name: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., reasoning: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateEvent(_message.Message):
    __slots__ = ("started", "chunk", "finished", "keep_alive", "waiting", "recovering")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    KEEP_ALIVE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RECOVERING_FIELD_NUMBER: _ClassVar[int]
    started: Started
    chunk: Chunk
    finished: Finished
    keep_alive: KeepAlive
    waiting: Waiting
    recovering: Recovering
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., keep_alive: _Optional[_Union[KeepAlive, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., recovering: _Optional[_Union[Recovering, _Mapping]] = ...) -> None: ...

class Recovering(_message.Message):
    __slots__ = ("device", "reason", "expected_s", "state")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_S_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    device: str
    reason: str
    expected_s: float
    state: str
    def __init__(self, device: _Optional[str] = ..., reason: _Optional[str] = ..., expected_s: _Optional[float] = ..., state: _Optional[str] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("session", "seed", "prompt_ids", "waited_s", "prompt_text", "system_folded", "answers_as", "standby")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TEXT_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FOLDED_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_AS_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    session: str
    seed: int
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    waited_s: float
    prompt_text: str
    system_folded: bool
    answers_as: str
    standby: str
    def __init__(self, session: _Optional[str] = ..., seed: _Optional[int] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., waited_s: _Optional[float] = ..., prompt_text: _Optional[str] = ..., system_folded: _Optional[bool] = ..., answers_as: _Optional[str] = ..., standby: _Optional[str] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("position", "expected_s")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_S_FIELD_NUMBER: _ClassVar[int]
    position: int
    expected_s: float
    def __init__(self, position: _Optional[int] = ..., expected_s: _Optional[float] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("token_ids", "text", "reasoning", "tool_calls", "logprobs", "prompt_logprobs")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    reasoning: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCallDelta]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., reasoning: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCallDelta, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class ToolCallDelta(_message.Message):
    __slots__ = ("index", "id", "name", "arguments")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    name: str
    arguments: str
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob", "text", "likeliest", "special")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LIKELIEST_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    text: bytes
    likeliest: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    special: bool
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., text: _Optional[bytes] = ..., likeliest: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., special: _Optional[bool] = ...) -> None: ...

class KeepAlive(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "statistics_json")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_JSON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    statistics_json: str
    def __init__(self, reason: _Optional[str] = ..., statistics_json: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("until_ready",)
    UNTIL_READY_FIELD_NUMBER: _ClassVar[int]
    until_ready: bool
    def __init__(self, until_ready: _Optional[bool] = ...) -> None: ...

class PipelineActivity(_message.Message):
    __slots__ = ("now", "state", "computed", "trees", "incomplete", "not_ready")
    NOW_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    TREES_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_FIELD_NUMBER: _ClassVar[int]
    now: float
    state: PipelineState
    computed: _containers.RepeatedCompositeFieldContainer[ComputedSegment]
    trees: _containers.RepeatedCompositeFieldContainer[TreeChange]
    incomplete: bool
    not_ready: str
    def __init__(self, now: _Optional[float] = ..., state: _Optional[_Union[PipelineState, _Mapping]] = ..., computed: _Optional[_Iterable[_Union[ComputedSegment, _Mapping]]] = ..., trees: _Optional[_Iterable[_Union[TreeChange, _Mapping]]] = ..., incomplete: _Optional[bool] = ..., not_ready: _Optional[str] = ...) -> None: ...

class PipelineState(_message.Message):
    __slots__ = ("running", "waiting", "tokens_per_s", "tokens_per_segment", "links")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    tokens_per_s: float
    tokens_per_segment: float
    links: _containers.RepeatedCompositeFieldContainer[LinkState]
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., tokens_per_s: _Optional[float] = ..., tokens_per_segment: _Optional[float] = ..., links: _Optional[_Iterable[_Union[LinkState, _Mapping]]] = ...) -> None: ...

class LinkState(_message.Message):
    __slots__ = ("sender", "receiver", "round_trip_s", "bytes_per_s", "sent_bytes_per_s")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    sender: str
    receiver: str
    round_trip_s: float
    bytes_per_s: float
    sent_bytes_per_s: float
    def __init__(self, sender: _Optional[str] = ..., receiver: _Optional[str] = ..., round_trip_s: _Optional[float] = ..., bytes_per_s: _Optional[float] = ..., sent_bytes_per_s: _Optional[float] = ...) -> None: ...

class ComputedSegment(_message.Message):
    __slots__ = ("session", "device", "kind", "start", "end", "rows")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    session: str
    device: str
    kind: str
    start: float
    end: float
    rows: int
    def __init__(self, session: _Optional[str] = ..., device: _Optional[str] = ..., kind: _Optional[str] = ..., start: _Optional[float] = ..., end: _Optional[float] = ..., rows: _Optional[int] = ...) -> None: ...

class TreeChange(_message.Message):
    __slots__ = ("session", "at", "grown", "sent", "accepted", "finished")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    GROWN_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    session: str
    at: float
    grown: TreeNodes
    sent: TreeNodes
    accepted: TreeNodes
    finished: Finished
    def __init__(self, session: _Optional[str] = ..., at: _Optional[float] = ..., grown: _Optional[_Union[TreeNodes, _Mapping]] = ..., sent: _Optional[_Union[TreeNodes, _Mapping]] = ..., accepted: _Optional[_Union[TreeNodes, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class TreeNodes(_message.Message):
    __slots__ = ("nodes", "parents", "texts", "scores")
    NODES_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    scores: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, nodes: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., texts: _Optional[_Iterable[str]] = ..., scores: _Optional[_Iterable[float]] = ...) -> None: ...
