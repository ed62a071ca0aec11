"""The driver of a draft node that tells what its pipeline does while somebody watches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from flowedge.core.messages import Message, Segment, SessionMessage, StageTime
from flowedge.core.request import Tokens
from flowedge.drafting.drafter import DraftLayer
from flowedge.engine.commands import DraftNodeCommand, PutOut, SendInBand
from flowedge.engine.draft_node.preparing import context_tokens
from flowedge.engine.jobs import DraftJob, DraftResult, GrowDraft, outcomes_of
from flowedge.live.activity.notes import ActivityNotes
from flowedge.live.compute_thread import Outcome
from flowedge.live.live_draft_node import LiveDraftNode
from flowedge.live.running_request import RunningRequest
from flowedge.strategies.events import TARGET

KEPT = 64  # segments of each stage
MOST_ROWS = 64  # of a segment that counts; those of a prompt say more of attention


class SegmentTimes:
    """Rows and seconds of the last segments that each stage has computed."""

    def __init__(self, stages: int) -> None:
        self._done = [deque[tuple[int, float]](maxlen=KEPT) for _ in range(stages)]

    def note(self, times: Sequence[StageTime]) -> None:
        """Take in a segment that has come back."""
        for done, each in zip(self._done, times, strict=False):
            if 0 < each.rows <= MOST_ROWS:
                done.append((each.rows, each.seconds))

    def of_each(self) -> list[list[tuple[int, float]]]:
        """Return rows and seconds of each stage, the latest last."""
        return [list(done) for done in self._done]


class ObservedDraftNode(LiveDraftNode):
    """A LiveDraftNode whose work can be noted. While nobody watches, little is noted.

    Attributes:
        stage_work: what the target's stages took for their last segments.
    """

    _notes: ActivityNotes | None = None

    @cached_property
    def stage_work(self) -> SegmentTimes:
        return SegmentTimes(self._machine.spec.num_stages)

    @property
    def num_running(self) -> int:
        """Sessions that are open, without those that wait."""
        return max(len(self._running) - self.load().waiting, 0)

    @property
    def context_tokens(self) -> int:
        """The most tokens of a prompt and its answer together."""
        return context_tokens(self._machine.spec, self._machine.admission.limits)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of hidden states, with what is tapped for the drafter."""
        spec = self._machine.spec
        return spec.width * np.dtype(spec.dtype).itemsize

    def begin_notes(self, notes: ActivityNotes) -> None:
        """Have everything noted from now on, in these notes only."""
        with self._lock:
            self._notes = notes

    def end_notes(self, notes: ActivityNotes) -> None:
        """Note nothing any more, unless other notes have been begun since."""
        with self._lock:
            if self._notes is notes:
                self._notes = None

    def _note_commands(self, commands: Sequence[DraftNodeCommand]) -> None:
        if self._notes is None:
            return
        for command in commands:  # tokens before the prunes that follow from them
            if isinstance(command, PutOut) and isinstance(command.output, Tokens):
                self._notes.put_out(command.output)
        for command in commands:
            if isinstance(command, SendInBand) and command.route == TARGET:
                self._notes.leaves(command.message, time.monotonic())

    def _take_one(self, message: SessionMessage, route: int, sender: str) -> None:
        if route == TARGET and isinstance(message, Segment):
            self.stage_work.note(message.stage_times)
            if self._notes is not None:
                self._notes.came_back(message, time.monotonic())
        super()._take_one(message, route, sender)

    def _finish(self, job: DraftJob, outcome: Outcome[DraftResult | None]) -> None:
        if self._notes is not None:
            self._notes.worked(job, *outcome.span)
            for each, result in outcomes_of(job, outcome.result):
                if isinstance(each, GrowDraft) and isinstance(result, DraftLayer):
                    self._notes.grown(each, result, outcome.span.end)
        super()._finish(job, outcome)

    def _note_sent(self, message: Message, num_bytes: int, started: float, ended: float) -> None:
        if self._notes is not None:
            self._notes.left(num_bytes, ended)
        super()._note_sent(message, num_bytes, started, ended)

    def _count_end(self, running: RunningRequest, reason: str) -> None:
        if self._notes is not None:
            self._notes.ended(running.session, reason, time.monotonic())
        super()._count_end(running, reason)
