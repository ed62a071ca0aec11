"""Telling the asking side what the devices of a pipeline are doing while it is set up."""

from __future__ import annotations

from typing import Protocol

from flowedge.v1 import agent_pb2 as pb


class ReportProgress(Protocol):
    """Says what a device is doing; with `transfer`, how far it has come with fetching weights."""

    async def __call__(self, device: str, text: str, transfer: pb.Transfer | None = None) -> None: ...
