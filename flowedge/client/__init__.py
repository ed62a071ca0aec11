"""The Python client: asks a draft node, sets up pipelines, and asks agents what they are."""

from flowedge.client.aio import AsyncClient, AsyncConversation, AsyncGeneration
from flowedge.client.device import Device, DraftNodeStatus
from flowedge.client.messages import ChatMessage, ToolCall
from flowedge.client.request import Recovery
from flowedge.client.sync import Client, Conversation, Generation
from flowedge.client.transcript import Chunk, TokenLogprob, ToolCallDelta
from flowedge.core.generate_options import GenerateOptions
from flowedge.core.grammar import Grammar

__all__ = [
    "AsyncClient",
    "AsyncConversation",
    "AsyncGeneration",
    "ChatMessage",
    "Chunk",
    "Client",
    "Conversation",
    "Device",
    "DraftNodeStatus",
    "GenerateOptions",
    "Generation",
    "Grammar",
    "Recovery",
    "TokenLogprob",
    "ToolCall",
    "ToolCallDelta",
]
