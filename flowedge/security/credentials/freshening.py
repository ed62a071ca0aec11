"""Keeps the identity of someone who runs commands current, at their start."""

from __future__ import annotations

import datetime
import logging
import threading

from flowedge.core.errors import FlowEdgeError
from flowedge.security.credentials.credentials import CredentialStore
from flowedge.security.credentials.enrolment import refresh_revoked, renew
from flowedge.security.credentials.renewal_time import renewal_time
from flowedge.security.credentials.revocation import FRESH

OLD_ENOUGH = datetime.timedelta(minutes=5)  # a revocation list that is younger is not fetched again
WAIT_S = 2.0  # a command goes on after this, with the list that it has

_log = logging.getLogger(__name__)


def freshen(store: CredentialStore, now: datetime.datetime) -> None:
    """Fetches the revocation list, and renews the certificate if it is time; waits for it at most WAIT_S."""
    if now < store.revoked.next_update - FRESH + OLD_ENOUGH and now < renewal_time(store.identity.holder):
        return
    thread = threading.Thread(target=_freshen, args=(store, now), name="flowedge-identity", daemon=True)
    thread.start()
    thread.join(WAIT_S)


def _freshen(store: CredentialStore, now: datetime.datetime) -> None:
    try:
        refresh_revoked(store)
        if renewal_time(store.identity.holder) <= now < store.identity.holder.not_after:
            renew(store)
    except FlowEdgeError as error:
        level = logging.WARNING if now >= store.revoked.next_update else logging.INFO
        _log.log(level, "the revocation list of %s is used: %s", store.revoked.next_update - FRESH, error)
