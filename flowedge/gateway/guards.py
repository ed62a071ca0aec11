"""Checks of the Host and Origin headers, so that no page of another site uses a local gateway."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from flowedge.gateway.config import ListenSettings
from flowedge.gateway.errors import ApiError

LOCAL_PROGRAMS = re.compile(r"(vscode-webview|app)://[A-Za-z0-9._-]+")
"""Origins of views within programs, such as editors. No site of the web has such an origin."""
_LOCAL_NAMES = frozenset({"localhost"})
_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def check_host(settings: ListenSettings, headers: Mapping[str, str]) -> None:
    """Check the name by which a request calls this machine.

    A page of another site may have its name resolved to 127.0.0.1 (DNS rebinding). The browser then takes the
    gateway for that site, and sends its name as Host.

    Raises:
        ApiError: with status 403, on loopback for a name that is neither loopback nor allowed; elsewhere
            only if names are configured.
    """
    if not (settings.is_local or settings.allowed_hosts):
        return
    host = host_of(headers.get("host", ""))
    if host in settings.allowed_hosts or (settings.is_local and _is_local(host)):
        return
    if host == settings.host:
        return
    raise ApiError(
        403,
        f"this gateway is not called {host[:200]!r}; if it is, start it with --allowed-host {host[:200]}",
        kind="permission_error",
        code="host_not_allowed",
    )


def check_origin(settings: ListenSettings, method: str, headers: Mapping[str, str]) -> None:
    """Check that a request which changes or computes something was not made by a page of another site.

    Raises:
        ApiError: with status 403, for an Origin that is neither the gateway's own nor configured, nor, on
            loopback, that of a program's view.
    """
    origin = headers.get("origin")
    if origin is None or method not in _CHANGING or origin in settings.cors_origins:
        return
    if settings.is_local and LOCAL_PROGRAMS.fullmatch(origin):
        return
    if _netloc_of(origin) != headers.get("host", ""):
        raise ApiError(
            403,
            f"pages of {origin[:200]} may not use this gateway; --cors-origin {origin[:200]} allows them to",
            kind="permission_error",
            code="origin_not_allowed",
        )


def host_of(netloc: str) -> str:
    """Return the host of a "host:port" header, without brackets and in lower case."""
    host = netloc.partition("]")[0] if netloc.startswith("[") else netloc.partition(":")[0]
    return host.removeprefix("[").lower()


def _netloc_of(origin: str) -> str | None:
    """Return the host and port of an origin; None of one that is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _is_local(host: str) -> bool:
    if host in _LOCAL_NAMES or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
