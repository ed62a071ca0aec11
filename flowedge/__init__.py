"""FlowEdge: one large language model across several small devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowedge import version

if TYPE_CHECKING:
    from flowedge.client import AsyncClient, Client

__version__ = version.VERSION
__all__ = ["AsyncClient", "Client", "__version__"]


def __getattr__(name: str) -> Any:
    """Imports the client when it is first asked for: an idle agent has no use for it."""
    if name in ("Client", "AsyncClient"):
        from flowedge import client  # noqa: PLC0415

        return getattr(client, name)
    raise AttributeError(f"module 'flowedge' has no attribute {name!r}")
