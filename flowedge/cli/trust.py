"""The credentials that a command shows to agents, or none."""

from __future__ import annotations

import datetime
from pathlib import Path

from flowedge.cluster import process
from flowedge.cluster.enrolment import LIST_AGE, refresh_credentials
from flowedge.cluster.settings import SecuritySettings


def choose_credentials(
    cluster_dir: Path | None, insecure: bool, list_age: datetime.timedelta = LIST_AGE
) -> None:
    """Have this process show the credentials of a directory from now on, renewed if that is due.

    list_age: a revocation list that is older is fetched again.

    Raises:
        BadRequestError: when the directory is given and has no credentials.
        AccessError: when its files cannot be used.
    """
    directory = None if cluster_dir is None else str(cluster_dir)
    settings = SecuritySettings(cluster_dir=directory, insecure=insecure)
    security = process.use(process.Security.load(settings))
    if security.store is not None:
        refresh_credentials(security.store, datetime.datetime.now(datetime.timezone.utc), list_age)
