"""The errors that FlowEdge raises: each says what is wrong, with the value, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class FlowEdgeError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        code: names the class on the wire.
        status: name of the gRPC status that carries the error to a client.
        request: id of the request that the error ended, "" where none is known.
        retry_after_s: seconds after which the same call is expected to succeed; None where it never will, or
            nobody knows.
    """

    code = "internal"
    status = "INTERNAL"
    request = ""
    retry_after_s: float | None = None

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} (request {self.request})" if self.request else text

    def of_request(self, request_id: str) -> Self:
        """Have the error name a request; returns the error itself."""
        self.request = request_id
        return self


class BadRequestError(FlowEdgeError):
    """An option or a request that cannot be served as asked."""

    code = "bad_request"
    status = "INVALID_ARGUMENT"


class GrammarError(BadRequestError):
    """A grammar that cannot be used with the model, or that no answer can follow."""

    code = "grammar"


class CapacityError(BadRequestError):
    """A request that finds no room, or a model that does not fit the memory."""

    code = "capacity"
    status = "RESOURCE_EXHAUSTED"

    @classmethod
    def later(cls, problem: str, seconds: float) -> Self:
        """Build the error of a request that finds no room now, and is expected to after `seconds`."""
        error = cls(f"{problem}; try later, in about {seconds:.0f} s")
        error.retry_after_s = seconds
        return error


class ContextLengthError(CapacityError):
    """A request whose prompt, or whose prompt and answer together, are longer than the pipeline takes."""

    code = "context_length"


class CheckpointError(FlowEdgeError):
    """A model or drafter directory that cannot be loaded."""

    code = "checkpoint"
    status = "FAILED_PRECONDITION"


class NonFiniteError(FlowEdgeError):
    """Hidden states, logits or scores that are NaN or infinite; the request that needs them ends."""

    code = "non_finite"
    status = "FAILED_PRECONDITION"

    @classmethod
    def of(cls, values: str, dtype: str = "") -> Self:
        """Build the error of values that a model has computed.

        Args:
            values: the subject of the message, in the plural: who computed which values.
            dtype: the dtype of the computation; float16 may have overflowed.
        """
        overflow = (
            "float16 may have overflowed: give --dtype bfloat16 or float32. Otherwise "
            if dtype == "float16"
            else ""
        )
        return cls(
            f"{values} are not finite (NaN or infinity); {overflow}the weights are damaged: `flowedge models "
            "verify` finds that in the cache, and a model in a directory has to be downloaded again"
        )


class ProtocolError(FlowEdgeError):
    """A message that breaks the protocol; the message is refused and its session ends."""

    code = "protocol"
    status = "INVALID_ARGUMENT"


class PrefixLostError(FlowEdgeError):
    """Rows that a new session was to begin with, and that a stage does not hold."""

    code = "prefix_lost"
    status = "UNAVAILABLE"


class AccessError(FlowEdgeError):
    """A peer that is not the expected device, or that may not do what it asks for."""

    code = "access"
    status = "PERMISSION_DENIED"


class PeerRefusedError(AccessError):
    """A peer at an address that this side has called, and whose certificate it does not accept."""


class DeviceError(FlowEdgeError):
    """A failure on one device, named by `device`."""

    code = "device"
    status = "FAILED_PRECONDITION"

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(f"device {device}: {reason}")
        self.device = device
        self.reason = reason


class DeviceLostError(DeviceError):
    """A device that closed its connection, or was silent for longer than the deadline.

    Attributes:
        silence_s: seconds for which it was silent; 0 where that is not the reason.
        by_neighbour: whether its neighbour in the pipeline has noticed, and no link of this device.
        stands_still: whether its links live, but nothing comes back.
    """

    code = "device_lost"
    status = "UNAVAILABLE"
    silence_s = 0.0
    by_neighbour = False
    stands_still = False


class DrainingError(DeviceLostError):
    """A device that is being stopped, or was: it accepts no new work and returns the sessions that it had."""

    code = "draining"
    status = "UNAVAILABLE"


class DeviceInUseError(DeviceError):
    """A device that is part of another pipeline, which is being set up or alive."""

    code = "in_use"


class PipelineNotReadyError(DeviceError):
    """A pipeline that is being set up, for the first time or after it has lost a device; `device` leads it.

    The same call succeeds when the pipeline is ready, so it is worth waiting.
    """

    code = "not_ready"
    status = "UNAVAILABLE"
    retry_after_s = 2.0


class OtherModelError(DeviceError):
    """A pipeline that took the place of a lost one and would answer otherwise, so no answer can go on."""

    code = "other_model"


class DeadlineError(FlowEdgeError):
    """Something that did not happen before its deadline."""

    code = "deadline"
    status = "DEADLINE_EXCEEDED"


def error_from_code(code: str, device: str, reason: str) -> FlowEdgeError:
    """Build the error that a peer reported; an unknown `code` gives a DeviceError.

    Args:
        device: name of the device that failed, "" where the error belongs to none.
    """
    plain: tuple[type[FlowEdgeError], ...] = (
        AccessError,
        BadRequestError,
        CapacityError,
        CheckpointError,
        ContextLengthError,
        DeadlineError,
        GrammarError,
        NonFiniteError,
        PrefixLostError,
        ProtocolError,
    )
    for cls in plain:
        if cls.code == code:
            return cls(f"device {device}: {reason}" if device else reason)
    of_device: tuple[type[DeviceError], ...] = (
        DeviceInUseError,
        DeviceLostError,
        DrainingError,
        OtherModelError,
        PipelineNotReadyError,
    )
    by_code = {cls.code: cls for cls in of_device}
    return by_code.get(code, DeviceError)(device, reason)


def wrong_type(name: str, value: object, expected: str) -> BadRequestError:
    """Return the error of a value that has the wrong type; `expected` says which one it must have."""
    return BadRequestError(f"{name} is {value!r:.200} ({type(value).__name__}); it must be {expected}")
