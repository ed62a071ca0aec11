"""One session as the draft node holds it: row sequence, returned segments, true rows and the draft growth."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

import numpy as np

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import Open, Prefix, Prune, Segment, Tapped
from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE
from flowedge.core.request import Finished, Request, StageReport
from flowedge.core.sampling import Walk
from flowedge.core.tree import ROOT
from flowedge.drafting.drafter import DraftLayer, DraftPrefix
from flowedge.engine.draft_node import returned_draws
from flowedge.engine.draft_node.decode_counts import DecodeCounts
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.draft_node.drafter_input import DrafterInput
from flowedge.engine.draft_node.route_session import RouteSession
from flowedge.engine.draft_node.session_answer import PromptJobs, SessionAnswer, TextStream
from flowedge.engine.finite import check_finite
from flowedge.engine.jobs import ExtendDraft, GrowDraft, JobTime, Verify
from flowedge.protocol.epochs import map_segment
from flowedge.protocol.pipeline_ledger import PipelineLedger
from flowedge.strategies.base import Strategy
from flowedge.strategies.commands import AcceptPath, Append, Grow, Send
from flowedge.strategies.events import TARGET, Layer, Prefilled, Returned, Verified
from flowedge.strategies.row_bounds import session_capacity


class DraftSession:
    """State of one request on the draft node, from its preparation to the last message about it.

    Attributes:
        wanted_rows: cache rows that it may come to need on every stage; capacity: those that its caches have.
        drawing: what the last stage needs to draw its tokens; None where the draft node draws them.
        side_routes: its sessions on the routes beside the target's, by route.
        counts: of its work; reports: the reports of the stages of every route on which it has been closed.
        needs_features: whether its drafter is given the target's hidden states.
        keeps_drafter: whether other sessions may copy true rows of its drafter.
        may_pause: whether its answer can be broken off and go on later.
        most_rows: the most rows that its sequence has had; most_drafts: the most beside its context that it
            needed room for.
        prefix: the rows that it begins with; draft_prefix: the true rows that its drafter begins with.
        answer: the tokens that are drawn and put out; prefilled: whether the first token is drawn.
    """

    def __init__(
        self,
        request: Request,
        strategy: Strategy,
        text: TextStream,
        spec: DraftNodeSpec,
        side_routes: Iterable[int] = (),
    ) -> None:
        """side_routes: the routes that the strategy uses beside the target's.

        Raises:
            BadRequestError: when the request cannot be served by any pipeline.
            CapacityError: when its sequence is longer than the model takes, or its strategy drafts too many
                rows.
        """
        self.name = request.session
        self.request = request
        self.strategy = strategy
        drafted = 0 if request.rows_only else strategy.max_draft_rows
        self.wanted_rows = session_capacity(spec.sequence_rows(request), drafted, spec.max_positions)
        self.capacity = self.wanted_rows
        self.needs_features = features = strategy.needs_drafter and spec.needs_features
        self.keeps_drafter = strategy.needs_drafter and spec.keeps_drafter
        self.drawing = returned_draws.drawing_of(request, spec.verification, features)
        keeps = features and returned_draws.may_keep_taps(request, spec.verification)
        self._kept_taps = spec.kept_taps if keeps else ()
        self.answer = SessionAnswer(request, text)
        self.side_routes = {
            route: RouteSession(self.name, route, request.given, self.capacity, spec.vocab_size)
            for route in side_routes
        }
        self.may_pause = not (request.rows_only or self.side_routes)
        self.most_rows, self.most_drafts = len(request.given), 0
        self.counts = DecodeCounts()
        self.reports: dict[int, tuple[StageReport, ...]] = {}
        self.prefilled = False
        self.latest_job = JobTime(0, 0.0)
        self._spec = spec
        self._growth: Grow | None = None  # the layer to be drafted next
        self._wanted_growth: int | None = None
        self._draft_begun = False  # whether a layer is being drafted
        self._extends_prompt = False  # whether it begins with rows of the prompt
        self._now = 0.0
        self._results: deque[Segment] = deque()
        self._incomplete: Segment | None = None  # returned, to be verified together with the next segment
        self._to_be_joined: set[int] = set()  # numbers of segments in flight that the next one completes
        self._verifying = False  # a segment of draft rows
        self._verified_number = 0  # of the segment whose verification began last
        self.begin(None)

    def begin(self, prefix: Prefix | None, draft_rows: int = 0) -> None:
        """Begin with rows of another session, or without rows; nothing of it is sent before, or comes back.

        draft_rows: true rows of that session that the drafter begins with. A drafter that needs no features
            is given the others as tokens.
        """
        prompt, spec, rows = self.request.given, self._spec, 0 if prefix is None else prefix.rows
        self.prefix = prefix
        self.draft_prefix = DraftPrefix(prefix.session, draft_rows) if prefix and draft_rows else None
        self.counts.reused_rows = rows
        self._ledger = PipelineLedger(self.name, prompt, rows)
        self._prompt_jobs = PromptJobs(self.request, self.answer)
        self._ledger.now = self._now
        self._sequence = self._ledger.sequence
        self._true_rows = DrafterInput(spec.width, spec.dtype, self._kept_taps, draft_rows)
        if rows > draft_rows and not self.needs_features:
            self._add_true_rows(None, np.array(prompt[draft_rows + 1 : rows + 1], dtype=np.int64))

    @cached_property
    def given(self) -> IntArray:
        """The tokens that its request gives it: int64 [n]."""
        return np.array(self.request.given, dtype=np.int64)

    @property
    def rows(self) -> int:
        """The rows of its sequence, draft rows among them."""
        return self._sequence.length

    @property
    def goes_on(self) -> bool:
        """Whether a part of its answer was put out before it was opened."""
        return bool(self.request.answered)

    def outgrows(self, rows: int) -> bool:
        """Return whether it needs larger caches for so many further rows, and may have them.

        How many draft rows it needs is noted.
        """
        self.most_drafts = max(self.most_drafts, self.rows + rows - self._sequence.context)
        return self.capacity < min(self.rows + rows, self.wanted_rows)

    @property
    def draft_rows(self) -> int:
        """The number of true rows that the drafter has been given and that other sessions may copy."""
        return self._true_rows.taken if self.keeps_drafter else 0

    @property
    def unaccepted_rows(self) -> int:
        """The number of rows of the prompt and the answer that are not context yet."""
        return len(self.request.prompt) + self.answer.length - self._sequence.context

    def last_extension(self) -> ExtendDraft | None:
        """Return the job that gives the drafter the session's last true rows; None if their values lack."""
        if not self._true_rows or not self._true_rows.complete:
            return None
        return ExtendDraft(self.name, *self._true_rows.take())

    def finished(self, device: str) -> Finished:
        """Return the output that ends the request; `device` is the draft node's name."""
        own = StageReport(device, busy_s=self.counts.busy_s, bytes_sent=self.counts.bytes_sent)
        return Finished(
            session=self.name,
            reason=self.answer.finish_reason or "",
            text="",
            counters=self.counts.counters(),
            reports=(own, *self.reports.get(TARGET, ())),
            side_reports=tuple(r for route in self.side_routes for r in self.reports.get(route, ())),
            verification=DRAFT_NODE if self.drawing is None else LAST_STAGE,
        )

    @property
    def routes(self) -> tuple[int, ...]:
        """The routes that the session uses, the target's first."""
        return (TARGET, *self.side_routes)

    def opening(self, route: int) -> Open:
        """Return the message that opens the session on a route."""
        opening = Open(self.name, self.capacity, computed_alone=self.strategy.computed_alone)
        if route != TARGET:
            return opening
        kept = bool(self._kept_taps)
        return replace(opening, drawing=self.drawing, keeps_taps=kept, prefix=self.prefix)

    def ledger(self, route: int) -> PipelineLedger:
        """Return the ledger of the segments on a route. Raises ProtocolError for a route it does not use."""
        return self._ledger if route == TARGET else self.side_route(route).ledger

    def side_route(self, route: int) -> RouteSession:
        """Return the session on a route beside the target's.

        Raises:
            ProtocolError: when the session does not use the route.
        """
        if route not in self.side_routes:
            raise ProtocolError(f"session {self.name} does not use route {route}")
        return self.side_routes[route]

    def take_grants(self, route: int) -> int:
        """Return the number of credits of a route that the strategy is to hear of now."""
        if not self.prefilled or (route != TARGET and not self.side_route(route).ready):
            return 0
        return self.ledger(route).take_grants()

    def advance_clock(self, now: float) -> None:
        """Set the time, in seconds, of the events that follow."""
        self._now = self._ledger.now = self.strategy.now = now

    def segment_of(self, command: Send | Append) -> Segment:
        """Append the rows of a command; return the segment that carries them."""
        if isinstance(command, Append):
            return self.committed_segment((command.token,))
        return self.draft_segment(command)

    def committed_segment(self, tokens: tuple[int, ...]) -> Segment:
        """Append rows that are context at once; return the segment that carries them."""
        segment = self._ledger.commit(tokens)
        self.most_rows = max(self.most_rows, self.rows)
        self.counts.meter.send(segment.number, len(tokens), self._ledger.now, committed=True)
        return segment

    def draft_segment(self, send: Send) -> Segment:
        """Append draft rows; return the segment that carries them."""
        if send.more:
            self._to_be_joined.add(self._ledger.sent)
        segment = self._ledger.append(send.tokens, send.parents)
        self.most_rows = max(self.most_rows, self.rows)
        if self.rows > self.capacity:
            raise ValueError(
                f"{self.strategy.name} sent more than its {self.strategy.max_draft_rows} draft rows"
            )
        self.counts.add(draft_rows_sent=len(send.tokens))
        self.counts.meter.send(segment.number, len(send.tokens), self._ledger.now, committed=False)
        return segment

    def prune(self, command: AcceptPath) -> Prune:
        """Change the sequence; results that wait to be verified are trimmed at once."""
        prune = self._sequence.prune(command.accepted, command.root, in_turn=not command.express)
        self._ledger.prune(prune)
        self._true_rows.accept(prune)
        self.counts.meter.prune(prune, self._ledger.now)
        if self._results:
            self._results = deque(map_segment(segment, prune)[0] for segment in self._results)
        if self._incomplete is not None:
            self._incomplete, _ = map_segment(self._incomplete, prune)
        self.counts.add(prunes=1)
        if command.ends_round:
            self.counts.end_round()
        return prune

    def take_result(self, segment: Segment, sender: str) -> None:
        """Take in a segment from the last stage, whose name is `sender`.

        Raises:
            NonFiniteError: when a live row is not finite.
            ProtocolError: when the segment does not fit the session.
        """
        drawing = self.drawing
        width = self._spec.width if drawing is None or drawing.features else 0
        if not segment.committed:
            width -= sum(stop - first for first, stop in self._kept_taps)
        segment = self._ledger.take_back(segment, (width,), self._spec.dtype)
        if drawing is not None:
            segment = returned_draws.with_draws(segment, self._spec.vocab_size)
        check_finite(segment.payload, sender)
        self.counts.add(segments=1)
        self._collect(segment)

    def _collect(self, segment: Segment) -> None:
        """Queue a returned segment for verification, joined with the segments it is verified with."""
        if self._incomplete is not None:
            segment, self._incomplete = self._incomplete.joined(segment), None
        if segment.number in self._to_be_joined:
            self._to_be_joined.remove(segment.number)
            self._incomplete = segment
        else:
            self._results.append(segment)

    def take_tapped(self, tapped: Tapped, sender: str) -> None:
        """Take in what a stage, whose name is `sender`, has kept of accepted rows.

        Raises:
            NonFiniteError: when a row is not finite.
            ProtocolError: when the rows do not fit the session.
        """
        self._true_rows.take_tapped(tapped)
        check_finite(tapped.rows, sender)

    def next_rows(self) -> Payload | None:
        """Return the payload of the next returned segment, for a request that asks for rows only."""
        return self._results.popleft().payload if self.request.rows_only and self._results else None

    @property
    def all_rows_returned(self) -> bool:
        """Whether every row of the prompt was sent and has come back."""
        return self._ledger.all_returned and self._sequence.context >= len(self.request.given)

    def take_empty(self) -> Returned | None:
        """Drop the next returned segment if no row of it lives and no verification comes before it."""
        if self._verifying or not self._results or self._results[0].num_rows:
            return None
        if not self.strategy.takes_results:
            return None
        *_, trip = self._ledger.take_trips(number := self._results.popleft().number)
        self.counts.meter.settle(number, self._ledger.now)
        self.counts.add(empty_segments=1)
        return Returned(trip)

    def next_verify(self) -> Verify | None:
        """Return the job that verifies, or scores, the next returned rows; most prompt rows need none."""
        while self.drawing is None:
            if (job := self._prompt_jobs.take()) is not None or (segment := self._take_live()) is None:
                return job
            if not segment.committed:
                self._verifying, rows = True, segment.payload
                sampling, path = self.request.sampling, self.answer.path
                return Verify(self.name, sampling, rows, *self._tree_of(segment), segment.positions, path)
            self._add_prompt_rows(segment)
            self._prompt_jobs.put(segment)
        return None

    def take_drawn(self) -> Prefilled | Verified | None:
        """Return the event of the next returned segment whose tokens the last stage has drawn, if any.

        Raises:
            ProtocolError: when the segment is no tree, or the draws are no path through it.
        """
        while self.drawing is not None and (segment := self._take_live()) is not None:
            if not segment.committed:
                tokens, parents = self._tree_of(segment)
                walk = returned_draws.returned_walk(segment, tokens, parents)
                after = np.append(tokens[list(walk.accepted[1:])], walk.token)
                self._add_true_rows(segment.payload, after)
                return self._followed(segment.first_row, walk, JobTime(segment.num_rows, 0.0))
            if self._add_prompt_rows(segment) < segment.num_rows:
                walk = Walk((0,), returned_draws.last_draw(segment))
                self._add_true_rows(segment.payload[-1:], np.array([walk.token]))
                return self._followed(segment.first_row + segment.num_rows - 1, walk, JobTime(1, 0.0))
        return None

    def _take_live(self) -> Segment | None:
        """Return the next returned segment if it has live rows and the strategy takes results now."""
        if not self.strategy.takes_results or not self._results or not self._results[0].num_rows:
            return None
        segment = self._results.popleft()
        self._verified_number = segment.number
        return segment

    def _add_prompt_rows(self, segment: Segment) -> int:
        """Give the drafter the committed rows after which the prompt goes on; return their number."""
        after = segment.first_row + 1
        known = np.array(self.request.given[after : after + segment.num_rows], dtype=np.int64)
        self._add_true_rows(segment.payload[: len(known)], known)
        return len(known)

    def _tree_of(self, segment: Segment) -> tuple[IntArray, IntArray]:
        """Return the tokens of the rows of a segment and the offsets of their parents, -1 for the root."""
        parents = returned_draws.parents_under_root(segment, self._sequence.context)
        return self._sequence.tokens[: segment.num_rows], parents

    def verified(self, job: Verify, result: Walk) -> Prefilled | Verified | None:
        """Return the event that tells the strategy of a verification; None of rows that were only scored."""
        self._verifying = False
        if job.known is not None:
            self.answer.score_prompt(result.likelihoods)
            return None
        drawn = [*job.tokens[list(result.accepted[1:])].tolist(), result.token]
        self.answer.draw(drawn, result.likelihoods)
        self._add_true_rows(job.hidden.take(result.accepted, axis=0), np.array(drawn))
        # Everything before the root is context, so that its row is its position.
        return self._followed(int(job.positions[0]), result, self.latest_job)

    def _followed(self, root_row: int, result: Walk, verified: JobTime) -> Prefilled | Verified:
        """Return the event that tells of a walk from a row, whose true rows the drafter has been given.

        Args:
            verified: what the verification took.
        """
        self.counts.meter.settle(self._verified_number, self._ledger.now)
        if not self.prefilled:
            self.prefilled = True
            return Prefilled(
                context=len(self.request.given),
                token=result.token,
                credits=self._ledger.take_grants(),
                stages=self._spec.num_stages,
                routes=tuple(self.side_routes),
                trips=self._ledger.take_trips(self._ledger.sent),
                verify_s=verified.seconds,
            )
        *_, trip = self._ledger.take_trips(self._verified_number)
        return Verified(
            accepted=tuple(root_row + row for row in result.accepted),
            token=result.token,
            trip=trip,
            rows=verified.rows,
            verify_s=verified.seconds,
            drafting=self._draft_begun,
        )

    def _add_true_rows(self, features: Payload | None, next_tokens: IntArray) -> None:
        if self.strategy.needs_drafter and len(next_tokens):
            self._true_rows.add(features if self._spec.needs_features else None, next_tokens)

    def next_draft(self) -> ExtendDraft | GrowDraft | None:
        """Return the next drafting job: prefill of the drafter as chunks return, or a layer of the growth."""
        if not self.prefilled:
            return ExtendDraft(self.name, *self._true_rows.take()) if self._true_rows else None
        growth, rows = self._growth, self._true_rows
        if growth is None:
            return None
        begins, alone = growth.nodes == (ROOT,), growth.lookup_alone
        if begins and not (alone or rows.complete):
            return None
        self._growth = None
        self._extends_prompt = begins and not alone and rows.taken < len(self.request.prompt) - 1
        self.counts.add(draft_layers=1)
        self._draft_begun = True
        extend: tuple[Payload | None, IntArray | None] = (None, None)
        if begins and rows:
            extend = (None, rows.tokens()) if alone else rows.take()
        waiting = len(extend[1]) if alone and extend[1] is not None else 0
        return GrowDraft(
            session=self.name,
            growth=growth.growth,
            nodes=np.array(growth.nodes),
            parents=np.array(growth.parents),
            tokens=np.array(growth.tokens),
            width=growth.width,
            features=extend[0],
            next_tokens=extend[1],
            path=self.answer.path_to(rows.taken + waiting) if begins else None,
            lookup_alone=alone,
        )

    def grow(self, command: Grow | None) -> None:
        """Ask for a layer in place of any layer asked for before; None takes the demand back."""
        self._growth = command
        self._wanted_growth = None if command is None else command.growth

    def grown(self, job: GrowDraft, result: DraftLayer) -> Layer | None:
        """Return the event of a drafted layer; None when the strategy has dropped its growth."""
        self._draft_begun = False
        nodes, (together, seconds) = tuple(job.nodes.tolist()), self.latest_job
        layer = Layer(
            job.growth,
            nodes,
            result.tokens,
            result.log_probs,
            seconds,
            together,
            result.computed,
            job.lookup_alone,
            self._extends_prompt,
        )
        if job.growth != self._wanted_growth:
            self.strategy.drop_layer(layer)
            return None
        self.counts.add(forced_tokens=result.forced)
        return layer
