"""A draft node and one stage, for tests that change what passes between them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flowedge.core.errors import FlowEdgeError
from flowedge.core.messages import Message
from flowedge.core.request import Failed, Finished, Output, Request, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.engine.commands import Compute, PutOut, SendExpress, SendInBand
from flowedge.engine.draft_node.cache_budget import AdmissionLimits
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.jobs import DraftBatch, DraftJob, ModelJob, outcomes_of
from flowedge.strategies.events import TARGET
from flowedge.strategies.registry import make_strategy
from tests.engine.exact_model import ExactHead, PlainModel
from tests.engine.histories import NoText
from tests.engine.rig import Rig
from tests.support.seams import is_empty

VOCAB = 4
SMALL = {
    "tree_nodes": 12,
    "depth": 3,
    "top_k": 3,
    "segment_rows": 4,
    "expand_nodes": 8,
    "expand_depth": 2,
    "deepen_nodes": 3,
    "deepen_layers": 1,
    "max_draft_rows": 30,
}
Tamper = Callable[[Message], list[Message]]


def request(session: str = "s", strategy: str = "flowspec", **changes) -> Request:
    values = {
        "session": session,
        "prompt": (1, 2, 3, 0, 1),
        "sampling": SamplingParams(),
        "max_new_tokens": 12,
        "strategy": strategy,
        "strategy_options": SMALL if strategy in ("flowspec", "naive_pp") else {},
    }
    return Request(**{**values, **changes})


class Loop:
    """A draft node and one stage, with nothing between them but what a test does to messages.

    Attributes:
        back: what the node got from the stage; sent: what it sent in-band; jobs: what it computed.
    """

    def __init__(self, limits: AdmissionLimits = AdmissionLimits(), **spec) -> None:  # noqa: B008 (frozen)
        values = {"width": 1, "dtype": "uint64", "prefill_rows": 3, "max_positions": 1000, **spec}
        self.node = DraftNode(
            "d0",
            DraftNodeSpec(**values),
            lambda r: make_strategy(r.strategy, r.strategy_options),
            NoText,
            limits,
        )
        self.head = ExactHead(VOCAB, np.random.default_rng(3))
        self.rig = Rig()
        self.outputs: list[Output] = []
        self.sent: list[Message] = []
        self.back: list[Message] = []
        self.express: list[Message] = []  # taken with a job, to be delivered next
        self.jobs: list = []

    @property
    def session_jobs(self) -> list[ModelJob]:
        """What it drafted and verified, session by session."""
        return [each for job in self.jobs if isinstance(job, DraftBatch) for each in job.jobs]

    def start(self, wanted: Request) -> None:
        self.node.start(self.node.prepare(wanted))

    def answer(self, wanted: Request) -> None:
        """Serve a request to its end, and hold its answer against the plain model's."""
        self.start(wanted)
        self.run()
        self.check_finished(wanted.session, wanted)

    def run(self, tamper: Tamper = lambda message: [message], turns: int = 10_000) -> None:
        """Let messages and jobs go on until nothing moves, or for some turns."""
        for _ in range(turns):
            if not self.turn(tamper):
                return

    def turn(self, tamper: Tamper) -> bool:
        job, moved = self.next_job(), False
        if job is not None:
            self.jobs.append(job)
            self.finish(job)
            moved = True
        back = [sent for message in self.express for sent in self.rig.receive(message, express=True)]
        self.express.clear()
        for command in self.node.poll(idle=False, ready=[TARGET]):
            match command:
                case SendExpress(message):
                    back += self.rig.receive(message, express=True)
                case SendInBand(message):
                    self.sent.append(message)
                    back += self.rig.receive(message)
                    moved = True
                case PutOut(output):
                    self.outputs.append(output)
        back += self.rig.upstream
        self.rig.upstream.clear()
        for message in back:
            for arriving in tamper(message):
                self.back.append(arriving)
                self.node.receive(arriving)
        return moved or bool(back)

    def next_job(self) -> DraftJob | None:
        """Take the next job, but no message for the link."""
        job = None
        for command in self.node.poll(idle=True, ready=[]):
            match command:
                case Compute():
                    job = command.job
                case SendExpress(message):
                    self.express.append(message)
                case PutOut(output):
                    self.outputs.append(output)
        return job

    def finish(self, job: DraftJob) -> None:
        """Run a job and give its outcomes back."""
        for each, outcome in outcomes_of(job, self.head.run(job)):
            self.node.finish(each, outcome)

    def of(self, session: str) -> list[Output]:
        return [output for output in self.outputs if output.session == session]

    def tokens(self, session: str) -> list[int]:
        return [t for output in self.of(session) if isinstance(output, Tokens) for t in output.token_ids]

    def error(self, session: str = "s") -> FlowEdgeError:
        """The one error the session ended with."""
        ends = [o for o in self.of(session) if not isinstance(o, Tokens)]
        assert len(ends) == 1, ends
        assert isinstance(ends[0], Failed)
        assert self.of(session)[-1] is ends[0], "something came out after the end"
        return ends[0].error

    def check_finished(self, session: str, wanted: Request | None = None) -> None:
        wanted = wanted or request(session)
        assert isinstance(self.of(session)[-1], Finished)
        plain = PlainModel(1, VOCAB).generate(wanted.prompt, wanted.max_new_tokens, wanted.eos)
        assert self.tokens(session) == plain

    def check_empty(self) -> None:
        assert self.node.load().sessions == 0
        assert is_empty(self.node)
        assert not self.head.open
        assert not self.node.poll(idle=True, ready=[TARGET])
        self.rig.check_empty()
