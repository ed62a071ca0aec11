"""A training target whose layers are on the agents of a pipeline, of which this process is the draft node."""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from flowedge.agent.config.agent_config import AgentConfig, DeadlineSettings, DeviceSettings
from flowedge.agent.roles.embedded import EmbeddedDraftNode, EmbeddedRequest, OnProgress, embedded_draft_node
from flowedge.core.request import DecodeCounters, Finished, Request, Rows, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.layers.head import LMHead, load_embedding
from flowedge.models.layers.taps import Taps
from flowedge.models.layers.tensors import to_tensor
from flowedge.net.address import is_loopback
from flowedge.training.targets.target import Question, TokenIds, TrainingTarget
from flowedge.v1 import agent_pb2 as pb
from flowedge.version import PROTOCOL_VERSION

PROGRESS_S = 600.0  # a text that waits behind others on slow devices sees nothing for a while
PLAIN = "autoregressive"

T = TypeVar("T")


class ClusterTarget(TrainingTarget):
    """Texts and questions go through the pipeline, a bounded number at once, and come out in order."""

    def __init__(
        self,
        node: EmbeddedDraftNode,
        checkpoint: Checkpoint,
        taps: Taps,
        in_flight: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """in_flight: texts on their way at once, so that all stages have work while the trainer has some."""
        models = node.models
        head, dtype = models.executor.head, models.executor.head.weight.dtype
        if torch.device(device) != head.weight.device:
            head = LMHead.load(checkpoint, dtype=dtype, device=device)
        embedding = load_embedding(checkpoint, dtype=dtype, device=device, shared_with=head)
        super().__init__(checkpoint, head, embedding, models.tokenizer, models.eos, taps)
        self._node = node
        self._in_flight = in_flight
        self._names = (f"t{uuid.uuid4().hex[:8]}-{number}" for number in itertools.count())

    def features(self, texts: Iterable[TokenIds]) -> Generator[Tensor, None, None]:
        """See TrainingTarget."""
        requests = (
            Request(
                next(self._names), tuple(text.tolist()), SamplingParams(), 0, strategy=PLAIN, rows_only=True
            )
            for text in texts
        )
        return self._served(requests, self._collect_rows, self._in_flight)

    def answers(self, questions: Iterable[Question]) -> Iterator[list[int]]:
        """See TrainingTarget."""
        return self._served(self._requests(questions, PLAIN), _collect_tokens, self._in_flight)

    def decode(self, head: Path, questions: Iterable[Question], strategy: str) -> Iterator[DecodeCounters]:
        """See TrainingTarget."""
        self._node.draft_with(self.load_drafter(head, self._node.models.executor.head))
        yield from self._served(self._requests(questions, strategy), _collect_counters, 1)

    def _requests(self, questions: Iterable[Question], strategy: str) -> Iterator[Request]:
        for question in questions:
            yield Request(
                next(self._names),
                tuple(question.prompt),
                question.sampling,
                self.room(question),
                self.eos,
                strategy=strategy,
            )

    def _served(
        self, requests: Iterator[Request], collect: Callable[[EmbeddedRequest], T], in_flight: int
    ) -> Generator[T, None, None]:
        """What is collected of each request, in order; the next is begun when a result has been taken."""
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
    """See OpenTarget; the layers are loaded by the agents at `stages`, which are released in the end.

    split: layers of each stage; empty for as even as possible. Raises what setting up a pipeline raises.
    """
    checkpoint = Checkpoint.open(source)
    role = pb.DraftNodeRole(
        pipeline=uuid.uuid4().hex,
        model=source,
        drafter="none",
        quant=quant,
        dtype=str(dtype).removeprefix("torch."),
        stages=stages,
        split=split,
        protocol_version=PROTOCOL_VERSION,
    )
    host = "127.0.0.1" if all(map(is_loopback, stages)) else "0.0.0.0"  # the last stage connects to it
    config = AgentConfig(
        agent=DeviceSettings(host=host, threads=torch.get_num_threads()),
        deadlines=DeadlineSettings(progress_s=PROGRESS_S),
    )
    with embedded_draft_node(role, config, taps=taps, report=report) as node:
        yield ClusterTarget(node, checkpoint, taps, len(stages) + 1, device)


def _finish(running: deque[EmbeddedRequest], collect: Callable[[EmbeddedRequest], T]) -> T:
    """Of the oldest request, which stays among the running ones until it is ended."""
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
