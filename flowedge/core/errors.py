"""The errors FlowEdge raises; every one says what was wrong and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class FlowEdgeError(Exception):
    """Base of all errors raised on purpose; `code` is what crosses the wire."""

    code = "internal"
    request = ""  # the id of the request that ended with it, where that is known

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} (request {self.request})" if self.request else text

    def of_request(self, request_id: str) -> Self:
        """The error itself, which names the request from now on."""
        self.request = request_id
        return self


class BadRequestError(FlowEdgeError):
    """An option or a request that cannot be served as asked."""

    code = "bad_request"


class CapacityError(BadRequestError):
    """A request whose context would not fit the cache, or a model that would not fit the memory."""

    code = "capacity"


class CheckpointError(FlowEdgeError):
    """A model or drafter directory that cannot be loaded."""

    code = "checkpoint"


class ProtocolError(FlowEdgeError):
    """A message that breaks the protocol; it is refused and the session it names ends."""

    code = "protocol"


class AccessError(FlowEdgeError):
    """Someone who is not who they should be, or may not do what they ask for."""

    code = "access"


class DeviceError(FlowEdgeError):
    """A failure that belongs to one device; `device` names it."""

    code = "device"

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(f"device {device}: {reason}")
        self.device = device
        self.reason = reason


class DeviceLostError(DeviceError):
    """A device that closed its connection or has been silent for longer than the deadline."""

    code = "device_lost"


class DrainingError(DeviceError):
    """A device that is being stopped: it takes nothing new, and what was running is handed back."""

    code = "draining"


class DeadlineError(FlowEdgeError):
    """Something that did not happen before its deadline."""

    code = "deadline"


def error_from_code(code: str, device: str, reason: str) -> FlowEdgeError:
    """The error a peer reported: the class whose `code` it is; `device` is where it happened."""
    for cls in (AccessError, BadRequestError, CapacityError, CheckpointError, ProtocolError, DeadlineError):
        if cls.code == code:
            return cls(f"device {device}: {reason}" if device else reason)
    for of_device in (DeviceLostError, DrainingError):
        if of_device.code == code:
            return of_device(device, reason)
    return DeviceError(device, reason)
