"""The agents that hold the layers, for a command that is the draft node itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flowedge.agent.local_cluster import LocalCluster
from flowedge.cli.pipelines.answering import find_devices, split_idle
from flowedge.cli.pipelines.request import check_split_count
from flowedge.client.assembly import OnProgress
from flowedge.core.errors import BadRequestError, FlowEdgeError
from flowedge.core.plain_text import counted


@dataclass(frozen=True)
class StagesRequest:
    """What the command line asks for: stages, peers or discovered agents, or nothing of these.

    Attributes:
        stages: number of local agents to start for the run.
        peers: addresses in the order of the layers.
        discovered: whether to use the idle agents on the network.
        split: layers of each stage; empty for as even as possible.
        discover_s: seconds to look for agents.

    Raises:
        BadRequestError: when options exclude each other, or an agent is named twice.
    """

    stages: int | None = None
    peers: tuple[str, ...] | None = None
    discovered: bool = False
    split: tuple[int, ...] = ()
    discover_s: float = 3.0

    def __post_init__(self) -> None:
        if (self.stages is not None) + (self.peers is not None) + self.discovered > 1:
            raise BadRequestError("give one of --stages, --peers and --devices")
        if self.split and not self.any_given:
            raise BadRequestError("--split is for the stages of --stages, --peers or --devices")
        check_split_count(self.split, self.stages if self.peers is None else len(self.peers))
        if self.peers is not None and len(set(self.peers)) < len(self.peers):
            raise BadRequestError("an agent is named twice in --peers; each holds one run of layers")

    @property
    def any_given(self) -> bool:
        """Whether the layers are to be on agents at all."""
        return self.stages is not None or self.peers is not None or self.discovered


@contextmanager
def open_stages(request: StagesRequest, report: OnProgress) -> Iterator[list[str]]:
    """Yield the addresses of agents in the order of the layers; agents started here end with the context."""
    if request.stages is not None:
        report("this machine", f"starting {counted(request.stages, 'stage agent')}")
        with LocalCluster(request.stages, draft_node=False) as cluster:
            yield [agent.address for agent in cluster.stages]
    elif request.peers is not None:
        yield list(request.peers)
    else:
        yield _idle(request)


def _idle(request: StagesRequest) -> list[str]:
    idle, busy = split_idle(find_devices(request.discover_s, least=1))
    wanted = len(request.split) or len(idle)
    if not idle or wanted > len(idle):
        besides = f", besides {busy}; free them with flowedge release NAME" if busy else ""
        raise FlowEdgeError(f"{max(1, wanted)} idle agents are needed and {len(idle)} found{besides}")
    return idle[:wanted]
