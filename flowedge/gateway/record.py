"""What is known of one HTTP request: filled while it is answered, then logged and counted."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(eq=False)
class RequestRecord:
    """One request.

    Attributes:
        request_id: as in `x-request-id`, in logs and at the draft node.
        endpoint: the route's path, such as "/v1/chat/completions"; "" where there is no such route.
        peer: address of the client; where a trusted proxy is before it, as the proxy tells.
        caller: name of the key.
        model, pipeline: that answered; "" where none was asked.
        status: of the answer; 0 before it begins. 499 if the client went away before.
        outcome: "ok", "client_gone", or the word for the error that ended the request.
        tokens_in, tokens_out: of prompts and answers.
        headers: further headers of the answer, in lower case; they may be set until it begins.
        recovering: the device that was lost while the answer came, until the answer goes on; else "".
        recovery: set when `recovering` changes; the reader clears it.
    """

    request_id: str
    method: str
    peer: str = ""
    endpoint: str = ""
    caller: str = ""
    model: str = ""
    pipeline: str = ""
    status: int = 0
    outcome: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    recovering: str = ""
    recovery: asyncio.Event = field(default_factory=asyncio.Event)
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def note_recovery(self, device: str) -> None:
        """Take note that a device was lost, or with "" that the answer goes on."""
        if device != self.recovering:
            self.recovering = device
            self.recovery.set()


CURRENT: ContextVar[RequestRecord | None] = ContextVar("flowedge_request", default=None)
"""The request that the running code answers; None outside of a request."""
