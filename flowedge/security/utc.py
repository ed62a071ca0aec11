"""The time that certificates are compared with."""

from __future__ import annotations

import datetime


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
