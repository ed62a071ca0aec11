"""An agent whose cache is its own, and empty at first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import grpc

from flowedge.v1 import weights_pb2 as pb
from flowedge.v1 import weights_pb2_grpc as rpc
from tests.support.processes import AgentProcess


class EmptyDevice(AgentProcess):
    """An agent that uses no directory of this machine but its cache."""

    def __init__(self, name: str, root: Path) -> None:
        self.cache = root / name
        settings = {"cache": {"dir": str(self.cache)}, "weights": {"directories": False}}
        super().__init__(name, "--no-advertise", settings=settings)

    def ask(self, peers: Sequence[str]) -> None:
        """From the next start on the agent asks these agents for weights."""
        self.settings["weights"]["peers"] = list(peers)

    def text(self) -> str:
        return "\n".join(self.lines)

    def catalogue(self) -> pb.CatalogueReply:
        """Return the objects of the device, and the bytes that went over its links."""
        with grpc.insecure_channel(self.address) as channel:
            reply: pb.CatalogueReply = rpc.WeightsStub(channel).Catalogue(pb.CatalogueRequest(), timeout=10)
        return reply
