"""Answers of the exact model over pipelines that are lost on their way, one after the other.

A pipeline that is lost leaves nothing but the tokens that were put out, so it does not matter which device it
was: what a loss can do is told by the event before which it happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flowedge.core.arrays import Payload
from flowedge.core.errors import DeviceLostError
from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE, VerificationPlace
from flowedge.core.request import Failed, Finished, Output, Request, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.engine.commands import PutOut
from flowedge.engine.draft_node.cache_budget import AdmissionLimits
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.draw import DrawnRows
from flowedge.engine.jobs import Forward
from flowedge.engine.stage.stage import Stage
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.planning.virtual_pipeline import Costs, VirtualPipeline
from flowedge.strategies.auto.measured import MeasuredPipeline
from tests.engine.exact_middle import ExactLayers, ExactMiddle
from tests.engine.exact_model import ExactHead, ExactStage, PlainModel
from tests.engine.histories import (
    FOR_EVER,
    NO_WAIT,
    NoText,
    RandomCosts,
    checked_strategy,
    express_fault,
    random_middles,
    random_rules,
    random_strategy,
)
from tests.engine.history_checks import check_clean
from tests.support.session_jobs import run_alone

LAYERS, VOCAB = 3, 3
SPLITS = ((1, 1, 1), (2, 1), (1, 2), (3,))  # the layers of each stage: a replacement, and fewer stages
ERROR = DeviceLostError("v1", "its process has ended")


class ExactBlock(ExactLayers):
    """A run of layers, the last of which may draw."""

    def __init__(self, layers: range) -> None:
        super().__init__([ExactStage(layer, VOCAB) for layer in layers])

    def _run_forward(self, job: Forward) -> Payload | DrawnRows | None:
        *inner, last = self.layers
        for layer in inner:
            hidden = run_alone(layer, replace(job, draw=None))
            if hidden is not None:
                job = replace(job, payload=hidden)
        return run_alone(last, job)


@dataclass
class Cluster:
    """What a pipeline is made of, and what all pipelines of a run have in common.

    Attributes:
        rng: of the pipelines' times, faults and drafts.
        verification: where tokens are drawn; prefill_rows, kept_rows: as in DraftNodeSpec.
        faults: whether express messages are lost and late.
        costs: the pipelines' times; random ones by default.
    """

    rng: np.random.Generator
    verification: VerificationPlace = DRAFT_NODE
    prefill_rows: int = 2
    kept_rows: int = 0
    faults: bool = False
    costs: Costs | None = None

    def pipeline(self, split: Sequence[int]) -> LostPipeline:
        """Return a new pipeline over stages of so many layers each."""
        return LostPipeline(self, split)


class LostPipeline:
    """A pipeline that may be lost."""

    def __init__(self, cluster: Cluster, split: Sequence[int]) -> None:
        rng, last = cluster.rng, len(split) - 1
        draws = cluster.verification == LAST_STAGE
        self.stages = [
            Stage(
                f"v{i}",
                StageSpec(
                    is_first=i == 0, width=1, vocab_size=VOCAB, dtype="uint64", draws=draws and i == last
                ),
            )
            for i in range(len(split))
        ]
        stops = np.cumsum(split).tolist()
        self.executors: list[ExactBlock | ExactMiddle] = [
            ExactBlock(range(stop - count, stop)) for count, stop in zip(split, stops, strict=True)
        ]
        middles, middle_executors = random_middles(LAYERS, VOCAB, rng, NO_WAIT)
        measured = MeasuredPipeline()
        self.head = ExactHead(VOCAB, rng)
        self.node = DraftNode(
            "d0",
            DraftNodeSpec(
                width=1,
                dtype="uint64",
                prefill_rows=cluster.prefill_rows,
                num_stages=len(split),
                num_routes=1 + len(middles),
                vocab_size=VOCAB,
                verification=cluster.verification,
                keeps_drafter=True,
                kept_rows=cluster.kept_rows,
                least_prefix=1,
            ),
            lambda request: checked_strategy(request, middle_executors, measured),
            NoText,
            AdmissionLimits(sessions=NO_WAIT, queue_s=FOR_EVER),
        )
        self.pipeline = VirtualPipeline(
            self.node,
            self.head,
            self.stages,
            self.executors,
            cluster.costs or RandomCosts(rng),
            express_fault=express_fault(rng) if cluster.faults else None,
            side_stages=middles,
            side_executors=middle_executors,
        )
        self.stages += middles
        self.executors += middle_executors

    def run(self, events: int | None) -> int:
        """Let so many events happen, or all; a pipeline that has more is lost then. Return how many."""
        for count in range(events if events is not None else 10_000_000):
            if not self.pipeline.step():
                self.node.target.forget(self.node.target.names)
                self.pipeline.cancel("nothing")  # has the draft node send what it has to send
                self.pipeline.run()
                check_clean(self.node, self.stages, self.executors, self.head)
                return count
        self.node.device_lost(ERROR)
        return events or 0

    def outputs(self) -> list[Output]:
        """Return all outputs, after `run`."""
        commands = self.node.poll(idle=False, ready=())
        last = [command.output for command in commands if isinstance(command, PutOut)]
        return [*(timed.output for timed in self.pipeline.outputs), *last]


@dataclass
class Recovery:
    """Answers over several pipelines.

    Attributes:
        tokens: that were put out, by session; reasons: why each answer ended.
        events: of each pipeline.
    """

    tokens: dict[str, list[int]]
    reasons: dict[str, str]
    events: list[int]


def recovered(
    cluster: Cluster,
    requests: Sequence[Request],
    losses: Iterable[int],
    splits: Iterable[Sequence[int]],
    starts: Sequence[float] | None = None,
) -> Recovery:
    """Answer requests over pipelines of which each but the last is lost after a number of events.

    Every answer goes on as the draft node's service has it go on: behind the tokens that were put out.

    splits: of the pipelines, one more than `losses`; starts: when each request arrives at the first.
    """
    done = Recovery({request.session: [] for request in requests}, {}, [])
    open_requests = {request.session: request for request in requests}
    arrivals = dict(zip(open_requests, starts or [0.0] * len(requests), strict=True))
    for events, split in zip([*losses, None], splits, strict=True):
        lost = cluster.pipeline(split)
        for name, request in open_requests.items():
            lost.pipeline.start(request, arrivals[name])
        done.events.append(lost.run(events))
        new: dict[str, list[int]] = {name: [] for name in open_requests}
        for output in lost.outputs():
            match output:
                case Tokens():
                    new[output.session] += output.token_ids
                case Finished():
                    assert output.session not in done.reasons
                    done.reasons[output.session] = output.reason
                case Failed():
                    assert output.error is ERROR, output.error
        for name, tokens in new.items():
            done.tokens[name] += tokens
            request = open_requests.pop(name)
            if name not in done.reasons:
                open_requests[name] = request.behind(tokens)
        arrivals = dict.fromkeys(open_requests, 0.0)  # they arrive together as soon as there is a pipeline
        if not open_requests:
            break
    return done


def check(requests: Iterable[Request], done: Recovery) -> int:
    """Hold the answers against the model alone; return the number of tokens."""
    plain = PlainModel(LAYERS, VOCAB)
    for request in requests:
        want = plain.generate(request.prompt, request.max_new_tokens, request.eos, request.rules)
        assert done.tokens[request.session] == want, (request, done.events)
        assert done.reasons[request.session] == ("eos" if want[-1] in request.eos else "length")
    return sum(map(len, done.tokens.values()))


def run_random_recovery(seed: int) -> int:
    """Lose up to four pipelines of random requests at random moments; return the number of tokens."""
    rng = np.random.default_rng([seed, 36])
    cluster = Cluster(
        rng,
        LAST_STAGE if seed % 2 else DRAFT_NODE,
        prefill_rows=int(rng.integers(1, 6)),
        kept_rows=int(rng.choice([0, 200])),
        faults=True,
    )
    requests = []
    for number in range(int(rng.integers(1, 5))):
        name, options = random_strategy(rng)
        requests.append(
            Request(
                session=f"s{number}",
                prompt=tuple(rng.integers(0, VOCAB, size=int(rng.integers(1, 9))).tolist()),
                sampling=SamplingParams(),
                max_new_tokens=int(rng.integers(1, 20)),
                eos=frozenset([int(rng.integers(0, VOCAB))]) if rng.random() < 0.2 else frozenset(),
                strategy=name,
                strategy_options=options,
                rules=random_rules(rng),
            )
        )
    losses = rng.integers(0, 1 + 60 * len(requests), size=int(rng.integers(0, 5))).tolist()
    splits = [SPLITS[int(rng.integers(len(SPLITS)))] for _ in range(len(losses) + 1)]
    starts = rng.integers(0, 60, size=len(requests)).astype(float).tolist()
    return check(requests, recovered(cluster, requests, losses, splits, starts))
