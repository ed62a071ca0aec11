"""Keeps a running agent's certificate and revocation list current."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flowedge.core.errors import FlowEdgeError
from flowedge.security.credentials.credentials import CredentialStore
from flowedge.security.credentials.enrolment import refresh_revoked, renew
from flowedge.security.credentials.renewal_time import renewal_time, retry_delay
from flowedge.security.process import Security
from flowedge.security.tls.guard import Guard

_WARN_AGAIN = datetime.timedelta(hours=1)

_log = logging.getLogger(__name__)


@asynccontextmanager
async def kept_current(security: Security, guard: Guard | None, refresh_s: float) -> AsyncIterator[None]:
    """While it is open, the list is fetched every `refresh_s` seconds and the certificate renewed."""
    if security.store is None or guard is None:
        yield
        return
    task = asyncio.create_task(Upkeep(security.store, guard).run(refresh_s))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Upkeep:
    """What is to be done for one identity, and when."""

    def __init__(self, store: CredentialStore, guard: Guard) -> None:
        self._store = store
        self._guard = guard
        self._spread = random.random()  # so that devices that joined together do not renew together
        self._retry = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
        self._warned = self._retry

    async def run(self, refresh_s: float) -> None:
        """Until cancelled."""
        while True:
            await self._refresh()
            await self._renew_when_due()
            await asyncio.sleep(refresh_s * (0.75 + 0.5 * random.random()))

    async def _refresh(self) -> None:
        try:
            changed = await asyncio.to_thread(refresh_revoked, self._store)
        except FlowEdgeError as error:
            self._warn_when_stale(error)
            return
        if changed:
            self._guard.end_revoked()

    def _warn_when_stale(self, error: FlowEdgeError) -> None:
        """An old list is kept: that the CA's host is off must not stop the devices."""
        now = _now()
        stale = now >= self._store.revoked.next_update
        if stale and now - self._warned >= _WARN_AGAIN:
            self._warned = now
            _log.warning(
                "the revocation list is out of date since %s and cannot be fetched, so whoever was revoked "
                "since is still let in: %s",
                self._store.revoked.next_update,
                error,
            )

    async def _renew_when_due(self) -> None:
        now = _now()
        holder = self._store.identity.holder
        if now < max(self._retry, renewal_time(holder, self._spread)):
            return
        try:
            await asyncio.to_thread(renew, self._store)
        except FlowEdgeError as error:
            delay = retry_delay(holder, now)
            self._retry = now + delay
            if now >= holder.not_after:
                _log.error("the certificate expired on %s; join again: flowedge join TOKEN", holder.not_after)
            else:
                _log.warning(
                    "the certificate, which expires on %s, was not renewed; next attempt in %d s: %s",
                    holder.not_after,
                    delay.total_seconds(),
                    error,
                )
            return
        _log.info("the certificate was renewed until %s", self._store.identity.holder.not_after)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
