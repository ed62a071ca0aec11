"""One stage with its executor, driven by hand."""

from __future__ import annotations

import numpy as np

from flowedge.core.messages import CONTEXT, Close, Fault, Message, Open, Prune, Segment
from flowedge.engine.commands import Compute, Count, SendBack, SendExpress, SendInBand, StageCommand
from flowedge.engine.jobs import StageJob
from flowedge.engine.stage.stage import Stage
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.engine.work_counts import WorkCounts
from flowedge.protocol.link_kind import LinkKind
from tests.engine.exact_model import ExactStage
from tests.support.seams import is_empty

VOCAB = 50


def segment(session="s", number=0, epoch=0, first=0, parents=None, positions=None, rows=None, **changes):
    """Token ids into a first stage: committed rows, or draft rows where `parents` are given."""
    committed = parents is None
    count = rows if parents is None else len(parents)
    if committed:
        parents = [row - 1 for row in range(first, first + count)]
    values = {
        "session": session,
        "number": number,
        "epoch": epoch,
        "committed": committed,
        "first_row": first,
        "positions": np.array(
            range(first, first + count) if positions is None else positions, dtype=np.int64
        ),
        "parents": np.array(parents, dtype=np.int64),
        "payload": (np.arange(count) + first).astype(np.int32) % VOCAB,
    }
    return Segment(**{**values, **changes})


def prune(session="s", epoch=1, source_len=0, context=0, accepted=0, retained=()):
    return Prune(session, epoch, source_len, context, accepted, np.array(retained, dtype=np.int64))


class Rig:
    """A stage that computes as soon as it can, unless a job is held back.

    Attributes:
        sent: everything that went downstream; upstream: the credits; told: what went to the draft node.
        counted: the counts of its work.
    """

    def __init__(self, is_first: bool = True, **limits) -> None:
        settings = {"width": 1, "vocab_size": VOCAB, "dtype": "uint64", **limits}
        spec = StageSpec(is_first=is_first, **settings)
        self.stage = Stage("v0", spec)
        self.executor = ExactStage(0)
        self.sent: list[Message] = []
        self.upstream: list[Message] = []
        self.told: list[Message] = []
        self.counted: list[WorkCounts] = []
        self.held: list = []  # a job that is being computed

    def receive(self, message: Message, express: bool = False, compute: bool = True) -> list[Message]:
        """Hand over a message; returns what goes downstream after it."""
        self.stage.receive(message, LinkKind.EXPRESS if express else LinkKind.IN_BAND)
        return self.pump(compute)

    def pump(self, compute: bool = True) -> list[Message]:
        while compute and not self.held and (job := self.next_job()) is not None:
            self.stage.finish(job, self.executor.run(job))
        return self.take()

    def next_job(self) -> StageJob | None:
        """Take the next job, but no message for the link."""
        commands = self.stage.poll(idle=True, ready=False)
        self._note(commands)
        return next((command.job for command in commands if isinstance(command, Compute)), None)

    def take(self) -> list[Message]:
        new: list[Message] = []
        while commands := self.stage.poll(idle=False, ready=True):
            self._note(commands)
            new += [command.message for command in commands if isinstance(command, SendInBand)]
        self.sent += new
        return new

    def _note(self, commands: list[StageCommand]) -> None:
        self.upstream += [command.message for command in commands if isinstance(command, SendBack)]
        self.told += [command.message for command in commands if isinstance(command, SendExpress)]
        self.counted += [command.counts for command in commands if isinstance(command, Count)]

    def hold(self, message: Segment) -> None:
        """Hand over a segment and leave it being computed."""
        self.stage.receive(message, LinkKind.IN_BAND)
        job = self.next_job()
        assert job is not None
        self.held.append(job)

    def release(self) -> list[Message]:
        """The segment that was held back is computed."""
        job = self.held.pop()
        self.stage.finish(job, self.executor.run(job))
        return self.pump()

    def faults(self, session: str = "s") -> list[Fault]:
        return [m for m in self.sent if isinstance(m, Fault) and m.session == session]

    def check_empty(self) -> None:
        """Nothing is left of any session."""
        assert self.stage.load().sessions == 0
        assert is_empty(self.stage)
        assert not self.executor.caches


def other_session(first_half: bool) -> list[Message]:
    """The life of a session named `other`, in two halves: prefill, draft, prune, draft, close."""
    if first_half:
        return [
            Open("other", 30),
            segment("other", 0, first=0, rows=4),
            segment("other", 1, first=4, parents=[CONTEXT, 4, 4], positions=[4, 5, 5]),
        ]
    return [
        segment("other", 2, first=7, parents=[6, 5], positions=[6, 6]),
        prune("other", 1, source_len=9, context=4, accepted=2, retained=[4, 6, 7]),
        segment("other", 3, epoch=1, first=7, parents=[6, 7], positions=[7, 8]),
        Close("other"),
    ]


def of_other(messages: list[Message]) -> list:
    """Return the messages that went downstream, in a form that can be compared."""
    out = []
    for message in messages:
        if getattr(message, "session", "") != "other":
            continue
        if isinstance(message, Segment):
            arrays = (message.positions.tolist(), message.parents.tolist(), message.payload.tolist())
            out.append((message.number, message.epoch, message.first_row, *arrays))
        elif isinstance(message, Prune):
            out.append((message.epoch, message.retained.tolist()))
        elif isinstance(message, Close):
            out.append(("close", message.reports[-1].segments, message.reports[-1].rows_computed))
        else:
            out.append(message)
    return out
