"""The process's limit of file descriptors, which connections count against."""

from __future__ import annotations

import resource

WANTED = 1 << 16


def raise_descriptor_limit() -> int:
    """Raise the limit as far as the system allows, up to WANTED; return the limit."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if most == resource.RLIM_INFINITY else min(WANTED, most)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        limit = wanted
    return WANTED if limit == resource.RLIM_INFINITY else limit
