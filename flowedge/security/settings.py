"""How an agent proves who it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SecuritySettings:
    """Which identity to use, and how it is kept current."""

    cluster_dir: str | None = None  # that `flowedge join` wrote to; the state directory if not given
    insecure: bool = False  # plaintext on every network, to and from anyone
    refresh_s: float = 60.0  # the revocation list is fetched, and renewal looked after, this often
