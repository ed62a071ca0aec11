"""The Python client: asks a draft node, sets up pipelines, and asks agents what they are."""

from flowedge.client.aio import AsyncClient, AsyncGeneration
from flowedge.client.chat.grammar import Grammar
from flowedge.client.chat.messages import ChatMessage, ToolCall
from flowedge.client.chat.received import TokenLogprob, ToolCallDelta
from flowedge.client.device import Device
from flowedge.client.request import GenerateArguments, GenerateOptions
from flowedge.client.sync import Client, Generation
from flowedge.client.transcript import Chunk

__all__ = [
    "AsyncClient",
    "AsyncGeneration",
    "ChatMessage",
    "Chunk",
    "Client",
    "Device",
    "GenerateArguments",
    "GenerateOptions",
    "Generation",
    "Grammar",
    "TokenLogprob",
    "ToolCall",
    "ToolCallDelta",
]
