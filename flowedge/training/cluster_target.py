"""A training target whose layers are on the agents of a pipeline, of which this process is the draft node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from flowedge.agent.agent_config import AgentConfig, DeadlineSettings, DeviceSettings
from flowedge.agent.roles.embedded import EmbeddedDraftNode, EmbeddedRequest, OnProgress, embedded_draft_node
from flowedge.core.ids import new_pipeline_id
from flowedge.core.pipeline_config import DRAFT_NODE, PipelineConfig
from flowedge.core.request import DecodeCounters, Finished, Request, Rows, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.host.payloads import to_tensor
from flowedge.models.lm_head import LMHead
from flowedge.models.taps import Taps
from flowedge.models.token_table import PackedTable
from flowedge.network.address import is_loopback
from flowedge.training.target import PLAIN, Question, TokenIds, TrainingTarget
from flowedge.v1 import agent_pb2 as pb
from flowedge.version import PROTOCOL_VERSION

ANSWERS_AT_ONCE = 32  # stages compute their rows together, which costs little more than those of one
PROGRESS_S = 600.0  # long, because a text that waits behind others on slow devices makes no progress

T = TypeVar("T")


class ClusterTarget(TrainingTarget):
    """Sends a bounded number of texts and questions through the pipeline at once, and keeps their order."""

    def __init__(
        self,
        node: EmbeddedDraftNode,
        checkpoint: Checkpoint,
        taps: Taps,
        in_flight: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Train with the draft node `node`, with up to `in_flight` texts in the pipeline.

        With more texts than stages, all stages have work while the trainer works on a text.
        """
        models = node.models
        head = models.executor.head
        if torch.device(device) != head.weight.device or isinstance(head.weight, PackedTable):
            head = LMHead.load(checkpoint, dtype=head.weight.dtype, device=device)
        super().__init__(checkpoint, head, models.tokenizer, models.eos, taps)
        self._node = node
        self._in_flight = in_flight

    def features(self, texts: Iterable[TokenIds]) -> Generator[Tensor, None, None]:
        requests = (
            Request(
                next(self._names), tuple(text.tolist()), SamplingParams(), 0, strategy=PLAIN, rows_only=True
            )
            for text in texts
        )
        return self._results(requests, self._collect_rows, self._in_flight)

    def answers(self, questions: Iterable[Question]) -> Iterator[list[int]]:
        requests = (self.request(question, PLAIN) for question in questions)
        return self._results(requests, _collect_tokens, max(ANSWERS_AT_ONCE, self._in_flight))

    def decode(self, drafter: str, questions: Iterable[Question], strategy: str) -> Iterator[DecodeCounters]:
        self._node.draft_with(self.load_drafter(drafter, self._node.models.executor.head))
        requests = (self.request(question, strategy) for question in questions)
        yield from self._results(requests, _collect_counters, 1)

    def _results(
        self, requests: Iterator[Request], collect: Callable[[EmbeddedRequest], T], in_flight: int
    ) -> Generator[T, None, None]:
        """Yield the result of each request, in order; a result that is taken makes room for a request."""
        running: deque[EmbeddedRequest] = deque()
        try:
            for request in requests:
                running.append(self._node.begin(request))
                if len(running) == in_flight:
                    yield _finish(running, collect)
            while running:
                yield _finish(running, collect)
        finally:
            for each in running:
                each.end()

    def _collect_rows(self, request: EmbeddedRequest) -> Tensor:
        chunks = [to_tensor(output.payload) for output in request.outputs() if isinstance(output, Rows)]
        return torch.cat([chunk.to(self.device).float() for chunk in chunks])


@contextmanager
def open_cluster_target(
    source: str,
    quant: str,
    dtype: torch.dtype,
    taps: Taps,
    *,
    stages: Sequence[str],
    split: Sequence[int] = (),
    report: OnProgress,
    device: torch.device | str = "cpu",
) -> Iterator[TrainingTarget]:
    """Open a target (see OpenTarget) on agents, which are released at the end.

    Args:
        stages: the agents' addresses.
        split: the layers of each stage; empty for an even split.
        report: called with the progress of loading.
        device: the trainer's device.

    Raises:
        FlowEdgeError: when the pipeline cannot be set up.
    """
    checkpoint = Checkpoint.open(source)
    pipeline = PipelineConfig(model=source, split=tuple(split), verification=DRAFT_NODE)
    pipeline = pipeline.changed(quant=quant, dtype=str(dtype).removeprefix("torch."))
    role = pb.DraftNodeRole(
        pipeline=new_pipeline_id(),
        stages=stages,
        protocol_version=PROTOCOL_VERSION,
        config=pipeline.to_json(),
    )
    host = "127.0.0.1" if all(map(is_loopback, stages)) else "0.0.0.0"  # the last stage connects to it
    config = AgentConfig(
        agent=DeviceSettings(host=host, threads=torch.get_num_threads()),
        deadlines=DeadlineSettings(progress_s=PROGRESS_S),
    )
    with embedded_draft_node(role, config, taps=taps, report=report) as node:
        yield ClusterTarget(node, checkpoint, taps, len(stages) + 1, device)


def _finish(running: deque[EmbeddedRequest], collect: Callable[[EmbeddedRequest], T]) -> T:
    """The result of the oldest request, which stays in `running` until it has ended."""
    result = collect(running[0])
    running.popleft().end()
    return result


def _collect_tokens(request: EmbeddedRequest) -> list[int]:
    outputs = request.outputs()
    return [token for output in outputs if isinstance(output, Tokens) for token in output.token_ids]


def _collect_counters(request: EmbeddedRequest) -> DecodeCounters:
    *_, last = request.outputs()
    assert isinstance(last, Finished), "the last output is"
    return last.counters
