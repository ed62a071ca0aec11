"""Finds out who sends a request, by the key that it shows."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Literal

from flowedge.core.errors import AccessError, BadRequestError
from flowedge.core.log_fields import about
from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.access.keys import ApiKey, KeyFile, find_key
from flowedge.gateway.access.usage import KeyUsage
from flowedge.gateway.errors import ApiError

_LOOK_S = 1.0  # between two looks at whether the file has changed
_AUTHORISATION = "bearer "
_PLAIN_HEADER = "x-api-key"

_log = logging.getLogger(__name__)


class Gatekeeper:
    """Knows the keys, reads their file again when it has changed, and counts what each key uses."""

    def __init__(self, mode: Literal["auto", "required", "off"], file: KeyFile, *, local: bool) -> None:
        """local: whether the gateway can be reached from its own machine only.

        Raises:
            AccessError: when the file cannot be used.
            BadRequestError: when a key is required, and there is none.
        """
        self._mode, self._file, self._local = mode, file, local
        self._keys: tuple[ApiKey, ...] = ()
        self._usage: dict[str, KeyUsage] = {}  # by digest
        self._stamp: tuple[int, int] | None = None
        self._looked = time.monotonic()
        if mode != "off":
            self._stamp = self._stamp_now()
            self._keys = file.read()
            if self.required and not self._keys:
                where = "beyond loopback" if mode == "auto" else "with required keys"
                raise BadRequestError(
                    f"the gateway would listen {where}, and there is no key in {file.path}; make one with "
                    "`flowedge serve keys add NAME`, or give --no-keys to let anyone in who can connect"
                )

    @property
    def required(self) -> bool:
        """Whether a request needs a key now."""
        if self._mode == "auto":
            return not self._local or bool(self._keys)
        return self._mode == "required"

    def caller_of(self, headers: Mapping[str, str]) -> ApiCaller | ApiError:
        """Return who sends a request with these headers, or the error that it is to be refused with."""
        self._look()
        if not self.required:
            return ApiCaller()
        secret = _secret_of(headers)
        if secret is None:
            return _unauthorised(
                "an API key is needed: send it as `Authorization: Bearer KEY`", "missing_api_key"
            )
        key = find_key(self._keys, secret)
        if key is None:
            return _unauthorised("the API key is not known here", "invalid_api_key")
        usage = self._usage.setdefault(key.digest, KeyUsage())
        return ApiCaller(key.name, key.priority, key.limits, usage, key.digest)

    def _look(self) -> None:
        """Read the file again if it has changed; the keys so far stay if it cannot be read."""
        now = time.monotonic()
        if self._mode == "off" or now - self._looked < _LOOK_S:
            return
        self._looked = now
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            keys = self._file.read()
        except AccessError as error:
            _log.error("the keys so far stay in force: %s", error, extra=about(event="keys_unreadable"))
            return
        if self._keys and not keys and self._mode == "auto" and self._local:
            self._mode = "required"  # removing the last key must not let everybody in
        self._keys = keys
        known = {key.digest for key in keys}
        self._usage = {digest: usage for digest, usage in self._usage.items() if digest in known}
        _log.info("the keys were read again", extra=about(event="keys_read", number=len(keys)))

    def _stamp_now(self) -> tuple[int, int] | None:
        try:
            found = self._file.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino


def _secret_of(headers: Mapping[str, str]) -> str | None:
    authorisation = headers.get("authorization", "")
    if authorisation.lower().startswith(_AUTHORISATION):
        return authorisation[len(_AUTHORISATION) :].strip() or None
    return headers.get(_PLAIN_HEADER) or None


def _unauthorised(message: str, code: str) -> ApiError:
    return ApiError(401, message, kind="authentication_error", code=code)
