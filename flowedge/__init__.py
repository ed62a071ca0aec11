"""FlowEdge: one large language model across several small devices."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flowedge import version

if TYPE_CHECKING:
    from flowedge.agent.ready_cluster import ReadyCluster as LocalCluster
    from flowedge.client import AsyncClient, ChatMessage, Client, GenerateOptions, Grammar, ToolCall
    from flowedge.core.errors import (
        AccessError,
        BadRequestError,
        CapacityError,
        CheckpointError,
        ContextLengthError,
        DeadlineError,
        DeviceError,
        DeviceInUseError,
        DeviceLostError,
        DrainingError,
        FlowEdgeError,
        GrammarError,
        NonFiniteError,
        OtherModelError,
        PeerRefusedError,
        PipelineNotReadyError,
        PrefixLostError,
        ProtocolError,
    )

__version__ = version.VERSION
_OF_CLIENT = ("AsyncClient", "ChatMessage", "Client", "GenerateOptions", "Grammar", "ToolCall")
__all__ = [
    "AccessError",
    "AsyncClient",
    "BadRequestError",
    "CapacityError",
    "ChatMessage",
    "CheckpointError",
    "Client",
    "ContextLengthError",
    "DeadlineError",
    "DeviceError",
    "DeviceInUseError",
    "DeviceLostError",
    "DrainingError",
    "FlowEdgeError",
    "GenerateOptions",
    "Grammar",
    "GrammarError",
    "LocalCluster",
    "NonFiniteError",
    "OtherModelError",
    "PeerRefusedError",
    "PipelineNotReadyError",
    "PrefixLostError",
    "ProtocolError",
    "ToolCall",
    "__version__",
]


def __dir__() -> list[str]:
    """Return the public names, also of what was not imported yet, for completion in a notebook."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import the client or the errors when they are first asked for: an idle agent needs no client."""
    if name not in __all__:
        raise AttributeError(f"module 'flowedge' has no attribute {name!r}")
    if name == "LocalCluster":
        return import_module("flowedge.agent.ready_cluster").ReadyCluster
    source = "flowedge.client" if name in _OF_CLIENT else "flowedge.core.errors"
    return getattr(import_module(source), name)
