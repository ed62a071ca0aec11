"""When a certificate is to be renewed."""

from __future__ import annotations

import datetime

from flowedge.security.credentials.certificates import BACKDATED
from flowedge.security.credentials.member import CertificateHolder

SHARE = 2 / 3  # of its life that a certificate is used for before it is renewed
SPREAD = 0.1  # of its life over which devices that joined together renew


def renewal_time(holder: CertificateHolder, spread: float = 0.0) -> datetime.datetime:
    """When to ask for a new certificate; `spread`, of [0, 1), is the device's place among others."""
    issued = holder.not_before + BACKDATED
    return issued + (holder.not_after - issued) * (SHARE + SPREAD * spread)


def retry_delay(holder: CertificateHolder, now: datetime.datetime) -> datetime.timedelta:
    """How long to wait after a renewal that failed: shorter as the end comes near, a second to an hour."""
    left = max(holder.not_after - now, datetime.timedelta())
    return min(max(left / 20, datetime.timedelta(seconds=1)), datetime.timedelta(hours=1))
