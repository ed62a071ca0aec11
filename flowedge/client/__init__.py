"""The Python client: asks a draft node, sets up pipelines, and asks agents what they are."""

from flowedge.client.aio import AsyncClient, AsyncGeneration
from flowedge.client.device import Device
from flowedge.client.sync import Client, Generation
from flowedge.client.transcript import Chunk

__all__ = ["AsyncClient", "AsyncGeneration", "Chunk", "Client", "Device", "Generation"]
