"""FlowEdge's own strategy: one objective, tokens per second, for rows, drafting and sending.

`auto` is FlowSpec's continuous pipelining without turns. What it estimates, and what it decides by that:

- The probability that each node of the tree is drawn (ProposalAcceptance), as measured in the request; the
  time of a trip, of a verification and of a forward of the drafter by their rows (StepTimes), as measured in
  all requests of the pipeline.
- Rows: the best unsent nodes of the newest tree, as long as a row adds more to the tokens of a trip than to
  its time (choose_rows), or delays nothing. Where a single row takes much less time than two, as with the
  4-bit weights of bitsandbytes, every segment may have a single row.
- When: as many segments are in flight as the plan has, mostly one a stage, and more where links take most of
  a trip; those whose rows have died do not count. A further segment would only wait in front of the slowest
  stage, chosen on older news than the segment that takes its place (late binding). For the same reason
  nothing is sent that would wait in front of the slowest stage until a layer or a return tells more. Sessions
  of one pipeline send together, in steps (PipelineSteps), so that each stage has segments of several sessions
  to compute in one forward.
- Drafting: each forward takes the likeliest nodes without proposals, at any depth, as many as give the most
  tokens per second of the forward (nodes_of_forward). It does not begin if the verification that it delays
  is worth more. A forward that is made for one session takes nodes of the others, which need only be worth
  what they lengthen it by (nodes_beside).
- A segment waits for the layer that is being drafted where that brings more (is_worth_waiting): a new root
  for its children, and any segment where the drafter limits the speed.
- Nothing is drafted, or by lookup alone, where plain decoding is faster, and a single segment is in flight
  where several gain nothing (DraftingProbation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from flowedge.core.arrays import FloatArray
from flowedge.core.tree import ROOT, UNSENT
from flowedge.protocol.pipeline_ledger import PipelineTrip
from flowedge.strategies.auto.acceptance import ProposalAcceptance
from flowedge.strategies.auto.candidate_tree import CandidateTree
from flowedge.strategies.auto.layer_under_way import LayerUnderWay
from flowedge.strategies.auto.load import RowDemand
from flowedge.strategies.auto.measured import MeasuredPipeline
from flowedge.strategies.auto.next_segment import NextSegment
from flowedge.strategies.auto.objective import nodes_beside, nodes_of_forward
from flowedge.strategies.auto.probation import Mode
from flowedge.strategies.auto.segments_in_flight import SegmentsInFlight
from flowedge.strategies.auto.session_share import choose_for_session
from flowedge.strategies.auto.speed import Speed
from flowedge.strategies.auto.step_times import StepTimes
from flowedge.strategies.base import Strategy
from flowedge.strategies.commands import Append, Command, Emit, Grow, Send, Withdraw
from flowedge.strategies.events import CreditGranted, Layer, Prefilled, Returned, StrategyEvent, Verified
from flowedge.strategies.pipeline_steps import AwaitedLayer
from flowedge.strategies.settings import AutoSettings
from flowedge.strategies.tree_commands import send_nodes

_FADE = 0.9  # weight of the former tree in the mean of trees
_PRIOR_CHILD = 0.65  # of a request's first trees: probability of the i-th node behind the root is this over i
_PLANS_AT_FIRST = 16  # verifications, in a session, after each of which rows are planned anew
_PLANS_APART = 4  # verifications after that
_LEAST_TOKENS = 2  # drawn between two growths from the root


class Auto(Strategy):
    """The tree of candidates, the segments in flight, and the estimates of times and probabilities."""

    name: ClassVar[str] = "auto"
    computed_alone: ClassVar[bool] = False

    # Known when the prompt has passed the pipeline.
    _stages: int
    _predicted: float  # tokens/s with all drafters
    _changes: int  # of the times, when the plan was made

    def __init__(
        self,
        settings: AutoSettings,
        measured: MeasuredPipeline | None = None,
        *,
        greedy: bool = True,
        weight: float = 1.0,
    ) -> None:
        """Begin a session with what sessions before it have measured.

        Args:
            measured: of the pipeline; None where the session is the first.
            greedy: whether tokens are drawn at temperature 0.
            weight: by which its tokens count more, or less, than those of other sessions.
        """
        super().__init__(settings.max_draft_rows)
        pipeline = MeasuredPipeline() if measured is None else measured
        self._settings = settings
        self._candidates = CandidateTree(
            settings.candidates, math.log(settings.least_node), ProposalAcceptance(settings.prior)
        )
        self._measured = pipeline
        self._load, self._steps = pipeline.load, pipeline.steps
        # Joins the load when the prompt has passed the pipeline.
        self._demand = RowDemand(np.ones(1), Speed(0.0, 0.0), weight)
        self._in_flight = SegmentsInFlight()
        self._trial = pipeline.trials[greedy]
        self._mode = Mode.ALL  # as the trial said when tokens were last drawn here; other sessions change it
        self._alone = True  # whether no other session has been open beside it
        self._credits = 0
        self._verified = 0
        self._looks_up = False  # whether the growth has lookup alone asked
        self._layer = LayerUnderWay()
        self._next = NextSegment(settings, self._candidates, self._in_flight, self._layer, pipeline.load)
        self._layer_at: float | None = None  # when the last layer came, if nothing but a forward followed
        self._grown_at = 0.0  # when the growth began
        self._tokens = 0  # drawn since
        self._committed = False  # whether the root is in flight as a committed row

    @property
    def plain_tokens_per_s(self) -> float:
        return self._trial.plain_tokens_per_s

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        self._next.change()
        layer_at, self._layer_at = self._layer_at, None
        match event:
            case Prefilled():
                self._begin(event)
                return [Emit((event.token,)), *self._proceed()]
            case Layer():
                self._observe_layer(event)
                if layer_at is not None and event.computed and self._load.alone:
                    self._times.observe_handling(self.now - layer_at - event.seconds)
                if not self._next.forward_s[0]:
                    self._next.learn_forwards()
                self._layer.end(self.now)
                self._candidates.take(event)
                commands = self._proceed()
                self._layer_at = self.now if self._layer.grow is not None else None
                return commands
            case Verified():
                self._times.observe_verification(event)
                self._take_back(event.trip)
                self._demand.speed.count(len(event.accepted), self.now)
                return [*(self._commit(event) if self._committed else self._advance(event)), *self._proceed()]
            case Returned():
                self._take_back(event.trip)
                return self._proceed()
            case CreditGranted():
                self._credits += 1
                return self._proceed()

    def drop_layer(self, layer: Layer) -> None:
        # Or the time of a drafter that is slower than a trip would never be known.
        self._observe_layer(layer)

    def opened(self) -> None:
        self._load.open(self._demand)
        self._alone = self._load.alone

    def end(self) -> None:
        self._load.leave(self._demand)
        self._steps.leave(self)

    @property
    def may_send_segment(self) -> bool:
        return self._may_send_another and not self._next.waits(self.now) and bool(self._next.nodes(self.now))

    @property
    def awaits_layer(self) -> bool:
        return self._may_send_another and self._layer.grow is not None and not self._next.nodes(self.now)

    @property
    def awaited(self) -> AwaitedLayer | None:
        return self._next.awaited(self.now)

    def expected(self) -> tuple[float, float]:
        return self._next.expected(self.now)

    def send_step(self) -> Sequence[Send]:
        return [self._send(self._next.nodes(self.now))] if self._steps.joins_step(self) else []

    def join_draft(self, nodes: int) -> Grow | None:
        probabilities = self._undrafted()
        # The first layer below a root needs the target's features, and is worth a forward of its own.
        if self._mode is Mode.PLAIN or not len(probabilities) or not self._candidates.drafted[ROOT]:
            return None
        forward_s = self._times.forwards(nodes + len(probabilities))
        added_s = forward_s[nodes:] - forward_s[nodes - 1]
        count = nodes_beside(probabilities, added_s, self._candidates.hit, self._load.tokens_per_s)
        return self._draft(probabilities[:count], float(forward_s[nodes + count - 1])) if count else None

    def _begin(self, event: Prefilled) -> None:
        self._credits, self._stages = event.credits, event.stages
        size = event.stages * self._settings.segment_rows
        prior = np.append(1.0, _PRIOR_CHILD / np.arange(1, size))
        self._demand.probabilities = prior
        self._load.join(self._demand)
        self._steps.join(self, event.stages)
        self._alone = self._alone and self._load.alone
        if self._alone:
            self._trial.begin(event.stages)
            self._mode = self._trial.mode
        for times in self._measured.times.values():
            times.begin(event.stages)
            for trip in event.trips:
                times.observe_trip(trip)
            times.verifications.observe(1, event.verify_s)
        self._candidates.restart(event.token, event.context)
        self._replan()
        self._demand.speed = Speed(1 / self._next.plan.returned, self.now)
        self._decide(0)

    def _observe_layer(self, layer: Layer) -> None:
        times = self._measured.times[Mode.LOOKUP] if layer.lookup_alone else self._times
        times.observe_layer(layer, of_root=layer.nodes == (ROOT,))

    def _take_back(self, trip: PipelineTrip | None) -> None:
        segment = self._in_flight.take_back()
        if segment.in_step:
            self._steps.take_back(self)
        if trip is not None and self._mode is not Mode.PLAIN:
            self._times.observe_trip(trip)

    def _commit(self, event: Verified) -> list[Command]:
        """Take in the token that was drawn after a committed root."""
        self._committed = False
        self._candidates.restart(event.token, self._candidates.tree.context + 1)
        self._count(len(event.accepted))
        return [Emit((event.token,))]

    def _advance(self, event: Verified) -> list[Command]:
        """Move the root to the drawn token."""
        candidates = self._candidates
        if not event.drafting:
            self._layer.until = self.now
        withdrawn = [] if event.drafting else self._withdraw()
        emit, accept = candidates.advance(event)
        if accept.root is None:
            self._in_flight.all_died(self.now)
            self._steps.flush(self)
        else:
            self._in_flight.keep(candidates.living_segments(self._in_flight.returned), self.now)
        self._tokens += len(event.accepted)
        if not accept.ends_round:
            self._observe_tree()
        anew = not candidates.drafted[ROOT] or (not event.drafting and self._grows_anew())
        if anew:
            withdrawn += self._withdraw()  # the layer belongs to the growth that ends
        if anew and not accept.ends_round:
            candidates.regrow()
        self._count(len(event.accepted))
        return [emit, accept, *withdrawn]

    def _withdraw(self) -> list[Command]:
        """Take back the layer that was asked for, if any."""
        if self._layer.grow is None:
            return []
        self._candidates.withdraw(self._layer.grow)
        self._layer.grow = None
        return [Withdraw()]

    def _observe_tree(self) -> None:
        probabilities = self._demand.probabilities
        best = -np.sort(-np.exp(self._candidates.tree.effective_scores()))[: len(probabilities)]
        probabilities *= _FADE
        probabilities[: len(best)] += (1 - _FADE) * best

    def _count(self, tokens: int) -> None:
        """Take in drawn tokens: plan anew where that is due, and decide whether to draft."""
        self._verified += 1
        is_due = self._verified <= _PLANS_AT_FIRST or self._verified % _PLANS_APART == 0
        if is_due or self._times.changes != self._changes:
            self._replan()
        self._decide(tokens)

    def _decide(self, tokens: int) -> None:
        plain, speed = 1 / self._next.plan.returned, self._demand.speed
        # What is measured beside others says nothing of a session alone.
        self._alone = self._alone and self._load.alone
        anew = self._alone and self._trial.decide(tokens, self._predicted, speed.tokens_per_s, plain)
        mode = self._trial.mode if self._alone else Mode.ALL
        if anew or self._mode is not mode:
            self._mode = mode
            speed.restart()
            self._replan()

    @property
    def _times(self) -> StepTimes:
        return self._measured.times[Mode.ALL if self._mode is Mode.PLAIN else self._mode]

    def _replan(self) -> None:
        times, settings = self._times, self._settings
        stages = 0 if self._mode is Mode.ONE else self._stages
        hit = self._candidates.hit
        plan = of_all = choose_for_session(self._demand, self._load, times, stages, hit, settings)
        if self._mode is Mode.LOOKUP:
            of_all = choose_for_session(
                self._demand, self._load, self._measured.times[Mode.ALL], stages, hit, settings
            )
        self._predicted, self._changes = of_all.rows.tokens_per_s, times.changes
        self._next.replan(plan, times)
        self._steps.allow(max(self._stages, plan.rows.segments))

    def _grows_anew(self) -> bool:
        """Return whether to draft from the root again, with the target's true features.

        The first forwards of a new growth only give known nodes new scores. So a share of the draft node's
        time is spent on them, and no more.
        """
        if self._is_of_another_mode:
            return True
        levels = int(self._candidates.tree.depths.max()) + 1
        again_s = self._times.root_forward + (levels - 1) * float(self._next.forward_s[0])
        return (
            self._tokens >= _LEAST_TOKENS
            and self.now - self._grown_at >= self._settings.regrow_share * again_s
        )

    @property
    def _is_of_another_mode(self) -> bool:
        """Whether the growth asks other drafters than the mode says."""
        return self._looks_up is not (self._mode is Mode.LOOKUP)

    def _proceed(self) -> list[Command]:
        """Draft where drafting helps most; what is worth sending goes with the next step."""
        if self._mode is Mode.PLAIN:
            return self._decode_plainly()
        grow = self._grow()
        return [] if grow is None else [grow]

    def _decode_plainly(self) -> list[Command]:
        """Send the root as a committed row, once nothing that was drafted is in flight before it."""
        tree = self._candidates.tree
        if self._committed or not self._credits or tree.rows[ROOT] != UNSENT:
            return []
        self._committed = True
        self._depart(1, in_step=False)
        return [*self._withdraw(), Append(int(tree.tokens[ROOT]))]

    def _undrafted(self) -> FloatArray:
        """Return the probabilities of the nodes that may be drafted now, likeliest first: float64 [n]."""
        candidates, settings = self._candidates, self._settings
        # Nothing is sent before there are proposals below the root, however small a tree may be.
        has_room = len(candidates.tree) < settings.max_nodes or not candidates.drafted_layers
        if (
            self._layer.grow is not None
            or not has_room
            or (candidates.drafted[ROOT] and self._is_of_another_mode)
        ):
            return np.zeros(0)
        return np.exp(candidates.undrafted_scores(settings.draft_nodes))

    def _grow(self) -> Grow | None:
        candidates, probabilities = self._candidates, self._undrafted()
        if not len(probabilities):
            return None
        # The first root shows what a single row takes: a draft node that drafts all the time may lengthen it.
        if len(self._in_flight) and not self._next.single_measured:
            return None
        of_root = not candidates.drafted[ROOT]
        forward_s = (
            np.array([self._times.root_forward]) if of_root else self._next.forward_s[: len(probabilities)]
        )
        returns, speed = self._in_flight.next_return(self.now), self._load.tokens_per_s
        slack = min(returns, self._next.wait(self.now)) if self._next.takes_another else returns
        # With a single segment in flight, what is drafted is for the root that follows, whichever it is.
        plan = self._next.plan.rows
        rows = plan.rows * plan.segments if plan.segments > 1 else len(probabilities)
        count, tokens = nodes_of_forward(probabilities, forward_s, slack, self._candidates.hit, speed, rows)
        late_s = max(float(forward_s[count - 1]) - returns, 0.0)
        if tokens < speed * late_s and len(self._in_flight) and candidates.drafted_layers:
            return None
        if of_root:
            self._tokens, self._grown_at = 0, self.now
            self._looks_up = self._mode is Mode.LOOKUP
        return self._draft(probabilities[:count], float(forward_s[count - 1]))

    def _draft(self, probabilities: FloatArray, seconds: float) -> Grow | None:
        """Have the likeliest nodes, of these probabilities [n], drafted in a forward of this time."""
        self._next.change()
        grow = self._candidates.grow_likeliest(len(probabilities))
        if grow is not None and self._looks_up:
            grow = replace(grow, lookup_alone=True)
        self._layer.begin(grow, float(probabilities.sum()), self.now, seconds)
        return grow

    @property
    def _may_send_another(self) -> bool:
        """Whether another segment may be sent."""
        return self._mode is not Mode.PLAIN and self._credits > 0 and self._next.takes_another

    def _send(self, nodes: Sequence[int]) -> Send:
        # All rows of a tree are below its root: when the root is sent, nothing that lives is in flight.
        self._depart(len(nodes))
        self._candidates.note_sent(nodes, self._in_flight.sent)
        return send_nodes(self._candidates.tree, nodes)

    def _depart(self, rows: int, *, in_step: bool = True) -> None:
        self._next.change()
        self._credits -= 1
        self._in_flight.send(self.now, self._next.plan.trips, rows, in_step=in_step)
