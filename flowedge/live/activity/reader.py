"""Makes what watchers are told of the notes of a draft node."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from flowedge.engine.activity import FORWARD
from flowedge.live.activity.notes import (
    BytesLeft,
    DraftNodeWork,
    LayerGrown,
    Note,
    RowsPruned,
    SegmentBack,
    SegmentLeft,
    SessionBegan,
    SessionEnded,
    TokensOut,
)
from flowedge.live.activity.observed_tree import ObservedTree, ReportedChange, ReportedNode
from flowedge.live.activity.stage_schedule import StageSchedule
from flowedge.v1 import generation_pb2 as pb

WINDOW_S = 3.0  # over which speeds are counted
MAX_COMPUTED, MAX_TREE_NODES = 500, 2000  # of one message, but for what its last note adds
MAX_SESSIONS = 64  # that are followed
_LEAST_SCORE = -1e3  # an impossible child has none
_KINDS = {FORWARD: "verify"}

TextOf = Callable[[int], str]


@dataclass
class _Session:
    tree: ObservedTree = field(default_factory=ObservedTree)
    left: dict[int, float] = field(default_factory=dict)  # when the segments in flight left, by number
    begun: bool = False  # whether tokens have been put out


class RecentSum:
    """Sums of the last WINDOW_S seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._added: deque[tuple[float, float, float]] = deque()

    def add(self, at: float, amount: float, count: float = 0.0) -> None:
        self._added.append((at, amount, count))

    def sums(self, now: float) -> tuple[float, float]:
        """Return the sums of amounts and of counts."""
        while self._added and self._added[0][0] < now - self._window_s:
            self._added.popleft()
        return sum(each[1] for each in self._added), sum(each[2] for each in self._added)

    def rate(self, now: float) -> float:
        """Return the amount per second."""
        return self.sums(now)[0] / self._window_s


class ActivityReader:
    """Turns notes into messages; one for each draft node, whatever the number of watchers."""

    def __init__(self, device: str, stages: Sequence[str], row_bytes: int, text_of: TextOf) -> None:
        """
        device: the draft node's name; stages: names of the target's stages, in order.
        row_bytes: of a row of hidden states on the links between stages.
        text_of: returns the text of a token.
        """
        self._device = device
        self._stages = tuple(stages)
        self._row_bytes = row_bytes
        self._text_of = text_of
        self._sessions: dict[str, _Session] = {}
        self._schedule = StageSchedule()
        self._tokens = RecentSum()
        self._of_segments = RecentSum()
        self._sent = [RecentSum() for _ in range(len(self._stages) + 1)]

    def read(self, notes: Iterable[Note], now: float, *, lost: bool = False) -> list[pb.PipelineActivity]:
        """Return the activity that the notes tell of, without the pipeline's state, in at least one message.

        lost: whether notes are missing behind these; what is known of the sessions is given up then.
        """
        messages, nodes = [pb.PipelineActivity(now=now)], 0
        for note in notes:
            if nodes >= MAX_TREE_NODES or len(messages[-1].computed) >= MAX_COMPUTED:
                messages.append(pb.PipelineActivity(now=now))
                nodes = 0
            nodes += self._read(note, messages[-1])
        if lost:
            messages[-1].incomplete = True
            self._sessions.clear()
        return messages

    def state(self, running: int, waiting: int, now: float) -> pb.PipelineState:
        """Return the state of the pipeline, with speeds over the last seconds.

        Bytes between stages are computed of the rows that each stage has computed; rows that were pruned on
        the way are counted where they were computed.
        """
        tokens, segments = self._of_segments.sums(now)
        names = [self._device, *self._stages, self._device]
        links = [
            pb.LinkState(
                sender=sender,
                receiver=receiver,
                round_trip_s=2 * self._schedule.hop_s,
                sent_bytes_per_s=sent.rate(now),
            )
            for sender, receiver, sent in zip(names, names[1:], self._sent, strict=False)
        ]
        return pb.PipelineState(
            running=running,
            waiting=waiting,
            tokens_per_s=self._tokens.rate(now),
            tokens_per_segment=tokens / segments if segments else 0.0,
            links=links,
        )

    def _read(self, note: Note, message: pb.PipelineActivity) -> int:
        """Read a note; return the number of nodes of a tree that it tells of."""
        match note:
            case BytesLeft():
                self._sent[0].add(note.at, note.num_bytes)
            case DraftNodeWork():
                kind = _KINDS.get(note.kind, note.kind)
                message.computed.add(
                    session=note.session,
                    device=self._device,
                    kind=kind,
                    start=note.start,
                    end=note.at,
                    rows=note.rows,
                )
            case SessionBegan():
                self._sessions.pop(note.session, None)
                self._session(note.session).begun = False
            case SessionEnded():
                if self._sessions.pop(note.session, None) is not None:
                    change = message.trees.add(session=note.session, at=note.at)
                    change.finished.reason = note.reason
            case RowsPruned():
                self._session(note.session).tree.prune(note)
            case SegmentBack():
                self._computed(self._session(note.session), note, message)
            case TokensOut() | LayerGrown() | SegmentLeft():
                kind, told = self._changed(self._session(note.session), note)
                for word, nodes in (("grown", told.above), (kind, told.nodes)):
                    if nodes:
                        self._report(message.trees.add(session=note.session, at=note.at), word, nodes)
                return len(told.above) + len(told.nodes)
        return 0

    def _changed(
        self, session: _Session, note: TokensOut | LayerGrown | SegmentLeft
    ) -> tuple[str, ReportedChange]:
        """Change a session's tree; return the kind of the change and the nodes to tell of."""
        match note:
            case TokensOut():
                self._count(session, note)
                return "accepted", session.tree.put_out(note.tokens)
            case LayerGrown():
                return "grown", session.tree.grow(note)
            case SegmentLeft():
                session.left[note.number] = note.at
                return "sent", session.tree.send(note)

    def _session(self, name: str) -> _Session:
        known = self._sessions.get(name)
        if known is None:
            while len(self._sessions) >= MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            known = self._sessions[name] = _Session(begun=True)  # its beginning was not seen
        return known

    def _count(self, session: _Session, note: TokensOut) -> None:
        self._tokens.add(note.at, len(note.tokens))
        if session.begun:  # the first token belongs to the prompt
            self._of_segments.add(note.at, len(note.tokens), 1)
        session.begun = True

    def _computed(self, session: _Session, note: SegmentBack, message: pb.PipelineActivity) -> None:
        left = session.left.pop(note.number, None)
        if len(note.stage_times) != len(self._stages):
            return
        kind = "verify"
        if note.committed:
            kind = "decode" if session.begun else "prefill"
        for work in self._schedule.schedule(note.session, left, note.at, note.stage_times):
            name = self._stages[work.stage]
            message.computed.add(
                session=note.session, device=name, kind=kind, start=work.start, end=work.end, rows=work.rows
            )
            if work.stage < len(self._stages) - 1:
                self._sent[work.stage + 1].add(work.end, work.rows * self._row_bytes)
        self._sent[-1].add(note.at, note.num_bytes)

    def _report(self, change: pb.TreeChange, kind: str, nodes: Sequence[ReportedNode]) -> None:
        told: pb.TreeNodes = getattr(change, kind)
        for node in nodes:
            told.nodes.append(node.number)
            told.parents.append(node.parent)
            told.texts.append(self._text_of(node.token))
            told.scores.append(node.score if math.isfinite(node.score) else _LEAST_SCORE)
