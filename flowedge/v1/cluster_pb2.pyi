from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class AuthorityRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AuthorityReply(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    def __init__(self, certificate: _Optional[bytes] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("secret", "name", "default_name", "signing_request")
    SECRET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_NAME_FIELD_NUMBER: _ClassVar[int]
    SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    secret: bytes
    name: str
    default_name: str
    signing_request: bytes
    def __init__(self, secret: _Optional[bytes] = ..., name: _Optional[str] = ..., default_name: _Optional[str] = ..., signing_request: _Optional[bytes] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("signing_request",)
    SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    signing_request: bytes
    def __init__(self, signing_request: _Optional[bytes] = ...) -> None: ...

class Membership(_message.Message):
    __slots__ = ("certificate", "revocation_list", "renewal_port", "cluster_name")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    REVOCATION_LIST_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_PORT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    revocation_list: bytes
    renewal_port: int
    cluster_name: str
    def __init__(self, certificate: _Optional[bytes] = ..., revocation_list: _Optional[bytes] = ..., renewal_port: _Optional[int] = ..., cluster_name: _Optional[str] = ...) -> None: ...

class RevokedRequest(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class RevokedReply(_message.Message):
    __slots__ = ("revocation_list",)
    REVOCATION_LIST_FIELD_NUMBER: _ClassVar[int]
    revocation_list: bytes
    def __init__(self, revocation_list: _Optional[bytes] = ...) -> None: ...
