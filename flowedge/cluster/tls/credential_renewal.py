"""Renewing a running agent's certificate and revocation list."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flowedge.cluster.certificates import renewal_time, retry_delay, utc_now
from flowedge.cluster.credentials import CredentialStore
from flowedge.cluster.enrolment import refresh_revoked, renew
from flowedge.cluster.process import Security
from flowedge.cluster.revocation import OldListError
from flowedge.cluster.tls.guard import Guard
from flowedge.cluster.tls.renewable_server import RenewableServer
from flowedge.core.errors import FlowEdgeError
from flowedge.core.log_fields import about
from flowedge.network.log_rate import LogRate
from flowedge.network.supervision import supervise

_WARN_AGAIN_S = 3600.0

_log = logging.getLogger(__name__)


@asynccontextmanager
async def renewing_credentials(
    security: Security, guard: Guard | None, server: RenewableServer, refresh_s: float
) -> AsyncIterator[None]:
    """Until the context ends, renew the certificate when due and fetch the list every `refresh_s` seconds."""
    if security.store is None or guard is None:
        yield
        return
    renewal = _CredentialRenewal(security.store, guard, server)
    task = asyncio.create_task(supervise("the credential renewal", lambda: renewal.run(refresh_s)))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class _CredentialRenewal:
    def __init__(self, store: CredentialStore, guard: Guard, server: RenewableServer) -> None:
        self._store = store
        self._guard = guard
        self._server = server
        self._shown = store.credentials  # to new connections
        self._spread = random.random()  # so that devices that joined together do not renew together
        self._retry = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
        self._warnings = LogRate(seconds=_WARN_AGAIN_S)

    async def run(self, refresh_s: float) -> None:
        while True:
            await self._refresh_revoked()
            await self._renew_when_due()
            await self._show_renewed()
            await asyncio.sleep(refresh_s * (0.75 + 0.5 * random.random()))

    async def _refresh_revoked(self) -> None:
        """Fetch the list. The old list stays in use, since devices must run while the CA's host is off."""
        try:
            await asyncio.to_thread(refresh_revoked, self._store)
        except OldListError as error:
            self._warn("older", f"certificates that are revoked from now on are still accepted: {error}")
        except FlowEdgeError as error:
            if utc_now() >= self._store.revoked.next_update:
                self._warn(
                    "out of date",
                    f"the revocation list is out of date since {self._store.revoked.next_update} and cannot "
                    f"be fetched, so certificates revoked since then are still accepted: {error}",
                )
        else:
            self._guard.end_revoked()
            if self._store.doubt:
                self._warn(self._store.doubt, self._store.doubt)

    def _warn(self, kind: str, text: str) -> None:
        """Log a warning of a kind, once an hour."""
        if self._warnings.due(kind) is not None:
            _log.warning("%s", text, extra=about(event="revocation_list_old", reason=text))

    async def _renew_when_due(self) -> None:
        now = utc_now()
        holder = self._store.credentials.holder
        if now < max(self._retry, renewal_time(holder, self._spread)):
            return
        try:
            await asyncio.to_thread(renew, self._store)
        except FlowEdgeError as error:
            delay = retry_delay(holder, now)
            self._retry = now + delay
            if now >= holder.not_after:
                _log.error(
                    "the certificate expired on %s; join again: flowedge join --replace", holder.not_after
                )
            else:
                _log.warning(
                    "the certificate, which expires on %s, was not renewed; next attempt in %d s: %s",
                    holder.not_after,
                    delay.total_seconds(),
                    error,
                )
            return
        self._guard.end_revoked()  # a renewal brings the list as well
        _log.info("the certificate was renewed until %s", self._store.credentials.holder.not_after)

    async def _show_renewed(self) -> None:
        """Have the server show the latest certificate; after a failure the next round tries again."""
        latest = self._store.credentials
        if latest is self._shown:
            return
        try:
            await self._server.renew()
        except FlowEdgeError as error:
            _log.warning("new connections still get the old certificate: %s", error)
            return
        self._shown = latest
