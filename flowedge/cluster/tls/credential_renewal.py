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
from flowedge.cluster.tls.guard import Guard
from flowedge.cluster.tls.renewable_server import RenewableServer
from flowedge.core.errors import FlowEdgeError
from flowedge.network.supervision import supervise

_WARN_AGAIN = datetime.timedelta(hours=1)

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
        self._warned = self._retry

    async def run(self, refresh_s: float) -> None:
        while True:
            await self._refresh_revoked()
            await self._renew_when_due()
            await self._show_renewed()
            await asyncio.sleep(refresh_s * (0.75 + 0.5 * random.random()))

    async def _refresh_revoked(self) -> None:
        try:
            await asyncio.to_thread(refresh_revoked, self._store)
        except FlowEdgeError as error:
            self._warn_when_stale(error)
            return
        self._guard.end_revoked()

    def _warn_when_stale(self, error: FlowEdgeError) -> None:
        """Warn once an hour. The old list stays in use, since devices must run while the CA's host is off."""
        now = utc_now()
        stale = now >= self._store.revoked.next_update
        if stale and now - self._warned >= _WARN_AGAIN:
            self._warned = now
            _log.warning(
                "the revocation list is out of date since %s and cannot be fetched, so certificates revoked "
                "since then are still accepted: %s",
                self._store.revoked.next_update,
                error,
            )

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
