"""One session as the draft node holds it: sequence, returned segments, features, growth."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.errors import BadRequestError, CapacityError, ProtocolError
from flowedge.core.messages import CONTEXT, Prune, Segment, StageReport
from flowedge.core.request import DecodeCounters, Request
from flowedge.core.sampling import Walk
from flowedge.core.tree import ROOT
from flowedge.drafting.drafter import DraftLayer
from flowedge.engine.draft_node_spec import DraftNodeSpec
from flowedge.engine.jobs import DraftJob, ExtendDraft, GrowDraft, Verify
from flowedge.engine.middle_session import MiddleSession
from flowedge.engine.rows_in_flight import RowsInFlightMeter
from flowedge.engine.stopping import OutputText, TextStream
from flowedge.protocol.epochs import map_segment
from flowedge.protocol.pipeline_ledger import PipelineLedger
from flowedge.strategies.base import Strategy
from flowedge.strategies.commands import AcceptPath, Grow, Send
from flowedge.strategies.events import TARGET, Layer, Prefilled, Verified


class DraftSession:
    """State of one request on the draft node.

    Attributes:
        capacity: cache rows it needs on every stage.
        middles: its parts in the pipelines of middle models, by route; reports: of every route on which it
            has been closed.
        prefilled: whether the first token is drawn; finish_reason: why the generation ended.
        job_s: what the latest job took, in seconds.
    """

    def __init__(
        self,
        request: Request,
        strategy: Strategy,
        text: TextStream,
        max_positions: int,
        *,
        keeps_features: bool,
        routes: Iterable[int] = (),
        vocab_size: int = 0,
    ) -> None:
        """keeps_features: whether the drafter is given the target's hidden states.

        routes: to the middle models it works with; vocab_size: the target's number of token ids.

        Raises BadRequestError or CapacityError for a request that cannot be served.
        """
        if not request.prompt:
            raise BadRequestError("the prompt has no tokens")
        if request.max_new_tokens < 1 and not request.rows_only:
            raise BadRequestError(f"max_new_tokens is {request.max_new_tokens}; it must be 1 or more")
        new_tokens = 0 if request.rows_only else request.max_new_tokens
        wanted = len(request.prompt) + new_tokens
        if wanted > max_positions:
            raise CapacityError(
                f"{len(request.prompt)} prompt tokens and {new_tokens} new ones make {wanted}; "
                f"the model takes {max_positions}: shorten the prompt or lower max_new_tokens"
            )
        self.name = request.session
        self.request = request
        self.strategy = strategy
        self.capacity = wanted + (0 if request.rows_only else strategy.max_draft_rows)
        self.output = OutputText(request, text)
        self.middles = {
            route: MiddleSession(self.name, route, request.prompt, self.capacity, vocab_size)
            for route in routes
        }
        self.reports: dict[int, tuple[StageReport, ...]] = {}
        self.prefilled = False
        self.finish_reason: str | None = None
        self.job_s = 0.0
        self._growth: Grow | None = None  # the layer to be drafted next
        self._wanted_growth: int | None = None
        self._flight = PipelineLedger(self.name, request.prompt)
        self._sequence = self._flight.sequence
        self._meter = RowsInFlightMeter()  # of decoding
        self._results: deque[Segment] = deque()
        self._incomplete: Segment | None = None  # returned, to be verified together with the next
        self._to_be_joined: set[int] = set()  # numbers of segments under way that the next one completes
        self._verifying = False  # a segment of draft rows
        self._verified_number = 0  # of the segment whose verification began last
        self._keeps_features = keeps_features
        self._true_rows: list[tuple[Payload | None, IntArray]] = []  # that the drafter is not given yet
        self._counters = DecodeCounters()
        self._per_segment: list[int] = []
        self._per_round: list[int] = [0]
        self._first_emitted = False

    @property
    def routes(self) -> tuple[int, ...]:
        """To the pipelines that have a part in it."""
        return (TARGET, *self.middles)

    def flight(self, route: int) -> PipelineLedger:
        """What is under way on a route. ProtocolError when it has no part in the session."""
        return self._flight if route == TARGET else self.middle(route).flight

    def middle(self, route: int) -> MiddleSession:
        """The part of a middle model. ProtocolError when it has none."""
        if route not in self.middles:
            raise ProtocolError(f"session {self.name} does not use the middle model {route}")
        return self.middles[route]

    def take_grants(self, route: int) -> int:
        """Credits of a route that the strategy is to be told of now."""
        if not self.prefilled or (route != TARGET and not self.middle(route).ready):
            return 0
        return self.flight(route).take_grants()

    def tell_time(self, now: float) -> None:
        """The time, in seconds, of what happens next."""
        self._flight.now = now

    def committed_segment(self, tokens: tuple[int, ...]) -> Segment:
        """A segment of rows that are context at once."""
        segment = self._flight.commit(tokens)
        self._meter.send(segment.number, len(tokens), self._flight.now, committed=True)
        return segment

    def draft_segment(self, send: Send) -> Segment:
        """A segment of draft rows."""
        if send.more:
            self._to_be_joined.add(self._flight.sent)
        segment = self._flight.append(send.tokens, send.parents)
        if self._sequence.length > self.capacity:
            raise ValueError(
                f"{self.strategy.name} sent more than its {self.strategy.max_draft_rows} draft rows"
            )
        self._counters = replace(
            self._counters, draft_rows_sent=self._counters.draft_rows_sent + len(send.tokens)
        )
        self._meter.send(segment.number, len(send.tokens), self._flight.now, committed=False)
        return segment

    def prune(self, command: AcceptPath) -> Prune:
        """Change the sequence; results that wait here are trimmed at once."""
        prune = self._sequence.prune(command.accepted, command.root)
        self._flight.prune(prune)
        self._meter.prune(prune, self._flight.now)
        self._results = deque(map_segment(segment, prune)[0] for segment in self._results)
        if self._incomplete is not None:
            self._incomplete, _ = map_segment(self._incomplete, prune)
        self._counters = replace(self._counters, prunes=self._counters.prunes + 1)
        if command.ends_round:
            self._per_round.append(0)
        return prune

    def take_result(self, segment: Segment, spec: DraftNodeSpec) -> None:
        """Take in a segment from the last stage. Raises ProtocolError when it does not fit the session."""
        segment = self._flight.take_back(segment, (spec.width,), spec.dtype)
        self._counters = replace(self._counters, segments=self._counters.segments + 1)
        self._collect(segment)

    def _collect(self, segment: Segment) -> None:
        """Have a returned segment wait for its verification, joined with those it is verified with."""
        if self._incomplete is not None:
            segment, self._incomplete = self._incomplete.joined(segment), None
        if segment.number in self._to_be_joined:
            self._to_be_joined.remove(segment.number)
            self._incomplete = segment
        else:
            self._results.append(segment)

    def next_rows(self) -> Payload | None:
        """The payload of the next returned segment of a request for rows only."""
        return self._results.popleft().payload if self.request.rows_only and self._results else None

    @property
    def all_rows_returned(self) -> bool:
        """Whether every row of the prompt was sent and has come back."""
        return self._flight.all_returned and self._sequence.context >= len(self.request.prompt)

    def take_empty(self) -> bool:
        """Drop the next returned segment if no row of it lives and no verification comes before it."""
        if self._verifying or not self._results or self._results[0].num_rows:
            return False
        if not self.strategy.takes_results:
            return False
        number = self._results.popleft().number
        self._flight.take_trips(number)
        self._meter.settle(number, self._flight.now)
        self._counters = replace(self._counters, empty_segments=self._counters.empty_segments + 1)
        return True

    def next_verify(self) -> Verify | None:
        """Verification of the next returned segment; prompt chunks before the last need none."""
        while self.strategy.takes_results and self._results and self._results[0].num_rows:
            segment = self._results.popleft()
            self._verified_number = segment.number
            if not segment.committed:
                self._verifying = True
                return self._verify_draft(segment)
            after = segment.first_row + 1
            known = np.array(self.request.prompt[after : after + segment.num_rows], dtype=np.int64)
            self._add_true_rows(segment.payload[: len(known)], known)
            if len(known) == segment.num_rows:
                continue
            return Verify(
                session=self.name,
                sampling=self.request.sampling,
                hidden=segment.payload[-1:],
                tokens=np.zeros(1, dtype=np.int64),
                parents=np.array([-1]),
                positions=segment.positions[-1:],
            )
        return None

    def _verify_draft(self, segment: Segment) -> Verify:
        parents = np.where(segment.parents == CONTEXT, -1, segment.parents - segment.first_row)
        if segment.first_row != self._sequence.context or parents[0] != -1 or bool(np.any(parents[1:] < 0)):
            raise ProtocolError(f"segment {segment.number} is not a tree under the root")
        return Verify(
            session=self.name,
            sampling=self.request.sampling,
            hidden=segment.payload,
            tokens=self._sequence.tokens[: segment.num_rows],
            parents=parents,
            positions=segment.positions,
        )

    def verified(self, job: Verify, result: Walk, num_stages: int) -> Prefilled | Verified:
        """What a verification means for the strategy."""
        self._verifying = False
        self._meter.settle(self._verified_number, self._flight.now)
        accepted = np.array(result.accepted)
        tokens = np.append(job.tokens[accepted[1:]], result.token)
        self._add_true_rows(job.hidden[accepted], tokens)
        if not self.prefilled:
            self.prefilled = True
            return Prefilled(
                context=len(self.request.prompt),
                token=result.token,
                credits=self._flight.take_grants(),
                stages=num_stages,
                routes=tuple(self.middles),
                trips=self._flight.take_trips(self._flight.sent),
            )
        root_row = int(job.positions[0])  # everything before the root is context
        *_, trip = self._flight.take_trips(self._verified_number)
        return Verified(tuple((root_row + accepted).tolist()), result.token, trip)

    def _add_true_rows(self, features: Payload, next_tokens: IntArray) -> None:
        if self.strategy.needs_drafter and len(next_tokens):
            self._true_rows.append((features if self._keeps_features else None, next_tokens))

    def next_draft(self) -> DraftJob | None:
        """The next drafting job: the drafter's prefill as chunks return, or one layer of the growth."""
        if not self.prefilled:
            if not self._true_rows:
                return None
            features, tokens = self._take_true_rows()
            return ExtendDraft(self.name, features, tokens)
        growth, self._growth = self._growth, None
        if growth is None:
            return None
        self._counters = replace(self._counters, draft_layers=self._counters.draft_layers + 1)
        extend = self._take_true_rows() if growth.nodes == (ROOT,) and self._true_rows else (None, None)
        return GrowDraft(
            session=self.name,
            growth=growth.growth,
            nodes=np.array(growth.nodes),
            parents=np.array(growth.parents),
            tokens=np.array(growth.tokens),
            width=growth.width,
            features=extend[0],
            next_tokens=extend[1],
        )

    def grow(self, command: Grow | None) -> None:
        """Ask for a layer, in place of any asked for before; None asks for nothing."""
        self._growth = command
        self._wanted_growth = None if command is None else command.growth

    def _take_true_rows(self) -> tuple[Payload | None, IntArray]:
        features = [features for features, _ in self._true_rows if features is not None]
        tokens = np.concatenate([tokens for _, tokens in self._true_rows])
        self._true_rows.clear()
        return np.concatenate(features) if features else None, tokens

    def grown(self, job: GrowDraft, result: DraftLayer) -> Layer | None:
        """A drafted layer for the strategy; None when its growth is not wanted any more."""
        if job.growth != self._wanted_growth:
            return None
        nodes = tuple(job.nodes.tolist())
        return Layer(job.growth, nodes, result.tokens, result.log_probs, self.job_s)

    def count_emitted(self, count: int) -> None:
        """Count tokens put out after a returned segment; the prefill's token belongs to none."""
        if self._first_emitted:
            self._per_segment.append(count)
            self._per_round[-1] += count
        self._first_emitted = True
        self._meter.mark(self._flight.now)

    def note_rollbacks(self) -> None:
        """The strategy was obeyed; a rollback that the end of the answer forestalls is none."""
        self._counters = replace(self._counters, rollbacks=self.strategy.rollbacks)

    def counters(self) -> DecodeCounters:
        """What was counted so far."""
        rows, alive, segments = self._meter.means()
        return replace(
            self._counters,
            rows_in_flight=rows,
            rows_alive_in_flight=alive,
            segments_in_flight=segments,
            accepted_per_segment=tuple(self._per_segment),
            accepted_per_round=tuple(self._per_round),
        )
