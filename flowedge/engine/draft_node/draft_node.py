"""The state machine of the draft node, D0: it drafts, verifies, and alone changes a session's sequence.

Like the stage it opens no socket, reads no clock and starts no thread. A driver hands requests over with
`prepare` and `start` and messages with `receive`, and carries out the commands of `poll`. It hands back the
outcomes of a job with `finish`.
A route is the way to one pipeline: TARGET to the target's, the others to pipelines of one whole model each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from flowedge.core.errors import (
    BadRequestError,
    DeviceLostError,
    FlowEdgeError,
    NonFiniteError,
    ProtocolError,
    error_from_code,
)
from flowedge.core.messages import (
    Close,
    Credit,
    Fault,
    Message,
    Prune,
    Segment,
    Tapped,
)
from flowedge.core.request import Failed, Output, Request, Rows
from flowedge.core.sampling import Walk
from flowedge.drafting.drafter import DraftLayer
from flowedge.engine.activity import job_activity
from flowedge.engine.commands import Compute, DraftNodeCommand, PutOut, SendExpress, SendInBand
from flowedge.engine.draft_node.batching import next_draft_job, send_steps
from flowedge.engine.draft_node.cache_budget import AdmissionLimits, SharedPrefix
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.draft_node.draft_session import DraftSession
from flowedge.engine.draft_node.prefill_order import PrefillOrder
from flowedge.engine.draft_node.preparing import prepared_session
from flowedge.engine.draft_node.session_admission import OutgrownError, PreemptedError, SessionAdmission
from flowedge.engine.draft_node.session_answer import TextStream
from flowedge.engine.draft_node.target_sessions import TargetSessions
from flowedge.engine.finite import are_scores, named
from flowedge.engine.jobs import (
    DraftJob,
    DraftOutcome,
    GrowDraft,
    JobTime,
    ModelJob,
    Verify,
    sessions_of,
    shares_of,
)
from flowedge.engine.work_counts import Load
from flowedge.protocol.outbox import DraftNodeOutbox
from flowedge.strategies.base import HierarchicalStrategy, Strategy
from flowedge.strategies.commands import AcceptPath, Append, Command, Emit, Grow, Keep, Send, SendTo, Withdraw
from flowedge.strategies.events import TARGET, CreditGranted


class DraftNode:
    """All sessions of one pipeline. Its driver computes one job at a time.

    Attributes:
        spec: may be replaced; sessions that are prepared from then on go by it.
        admission: the sessions that wait to be opened.
        target: the sessions on the target's route, and those that are retained there.
    """

    def __init__(
        self,
        device: str,
        spec: DraftNodeSpec,
        make_strategy: Callable[[Request], Strategy],
        make_text: Callable[[], TextStream],
        limits: AdmissionLimits = AdmissionLimits(),  # noqa: B008 (frozen)
    ) -> None:
        self.device = device
        self.spec = spec
        self.admission = SessionAdmission(device, limits)
        self._make_strategy = make_strategy
        self._make_text = make_text
        self._sessions: dict[str, DraftSession] = {}
        self._closing: dict[str, DraftSession] = {}  # until the in-band close has come around
        self._cache_jobs: deque[DraftJob] = deque()
        self._outgoing = [DraftNodeOutbox() for _ in self.routes]
        self._outputs: deque[Output] = deque()
        self._now = 0.0
        self._prefill = PrefillOrder(spec.prefill_rows, spec.num_stages, self._outgoing[TARGET])
        self.target = TargetSessions(
            spec, self._outgoing[TARGET], self._cache_jobs, self._prefill, self.admission
        )

    def load(self) -> Load:
        """Return what the draft node holds now."""
        sessions = len(self._sessions) + len(self._closing)
        retained, waiting = self.target.num_retained, self.admission.num_waiting
        return Load(sessions, retained, waiting=waiting, drained=not sessions)

    @property
    def routes(self) -> range:
        return range(self.spec.num_routes)

    def prepare(self, request: Request) -> DraftSession:
        """Return a session for a request, which is not open yet. Raises what `prepared_session` raises."""
        strategy, limits = self._make_strategy(request), self.admission.limits
        return prepared_session(request, strategy, self._make_text(), self.spec, limits)

    def start(self, session: DraftSession) -> None:
        """Open a prepared session, at once or when the caches have capacity for it.

        Raises what SessionAdmission.arrive raises, and BadRequestError when a session of its name is open.
        """
        if session.name in self._sessions or session.name in self._closing:
            raise BadRequestError(f"session {session.name} exists already")
        self.admission.arrive(session, self._now)
        self.admit()

    def admit(self) -> None:
        """Open the waiting sessions that fit, refuse those that waited too long; call it regularly."""
        ending = self.admission.giving_way(self._now, self._find_prefix)
        if ending is not None:
            self.fail_session(ending, PreemptedError(self.device))  # which comes here again
            return
        opened = self.admission.admit(self._now, self._find_prefix)
        for session in opened:
            self._open(session)
        if opened:
            self._free_rows()
        self._outputs.extend(self.admission.take_outputs())

    def _open(self, session: DraftSession) -> None:
        session.advance_clock(self._now)
        session.strategy.opened()
        self._sessions[session.name] = session
        self._forget_retained()
        self.target.begin(session, self._sessions.values())
        for route in session.side_routes:
            self._outgoing[route].put(session.opening(route))
            self._send_prompt(session, route)

    def advance_clock(self, now: float) -> None:
        """Set the time, in seconds of a steady clock, of the calls that follow."""
        self._now = now
        for session in self._sessions.values():
            session.advance_clock(now)

    def cancel(self, name: str) -> None:
        """End a session without a result, unless it has ended."""
        if name in self._sessions:
            self._close(self._sessions[name], keep=False)
        elif self.admission.withdraw(name):
            self.admit()

    def fail_session(self, name: str, error: FlowEdgeError) -> None:
        """End a session with an error, unless it has ended."""
        session = self._sessions.get(name)
        if session is not None:
            self._close(session, keep=False)
            self._outputs.append(Failed(name, error))
        elif name in self._closing:
            # If it had finished, all tokens are out and only the stages' reports are lost.
            self._finished(self._closing.pop(name))
        elif self.admission.withdraw(name):
            self._outputs.append(Failed(name, error))
            self.admit()

    def device_lost(self, error: DeviceLostError) -> None:
        """End every session with the error: the pipeline is broken."""
        for name in [*self.admission.waiting, *self._sessions, *self._closing]:
            self.fail_session(name, error)
        self._closing.clear()
        self.target.forget(self.target.names)
        for outbox in self._outgoing:
            outbox.clear()

    def receive(self, message: Message, route: int = TARGET, sender: str = "the last stage") -> None:
        """Take in a message from the last stage of a route, a credit from the first, or a fault.

        A message of another kind has passed all stages, and has no effect here.

        sender: the name of the device that sent it, for messages; "" for what has not come in-band.
        """
        name = getattr(message, "session", "")
        try:
            match message:
                case Segment():
                    self._receive_result(message, route, sender)
                case Prune():
                    if name in self._sessions:
                        self._sessions[name].ledger(route).pass_fence(message.epoch)
                case Tapped():
                    if name in self._sessions:
                        self._sessions[name].take_tapped(message, sender)
                case Credit():
                    self._receive_credit(name, route)
                case Close():
                    self._receive_close(message, route)
                case Fault():
                    error = error_from_code(message.code, message.device, message.reason)
                    self._fail(name, error, route, in_band=bool(sender))
        except (ProtocolError, NonFiniteError) as broken:
            self.fail_session(name, named(broken, self.device))

    def poll(self, *, idle: bool, ready: Collection[int]) -> list[DraftNodeCommand]:
        """Return what is to be done now, in order.

        Args:
            idle: whether the next job may begin; at most one is returned.
            ready: the routes whose in-band link takes a message; at most one is returned for each.
        """
        commands: list[DraftNodeCommand] = []
        job: DraftJob | None = None
        if idle and self._cache_jobs:
            job = self._cache_jobs.popleft()
        elif idle:
            send_steps(self._sessions, self._outgoing[TARGET], self._claim_rows)
            job = next_draft_job(self._sessions, self.fail_session)
        if job is not None:
            commands.append(Compute(job))
        if ready:
            send_steps(self._sessions, self._outgoing[TARGET], self._claim_rows)
        for route, outbox in enumerate(self._outgoing):
            commands += [SendExpress(message, route) for message in outbox.take_express()]
            if route in ready and (message := outbox.in_band.pop()) is not None:
                commands.append(SendInBand(message, route))
        commands += map(PutOut, self._outputs)
        self._outputs.clear()
        return commands

    def ran(self, job: DraftJob, seconds: float) -> None:
        """Add the time of a job that is about to be taken back to the reports of its sessions."""
        rows = job_activity(job)[1]
        for name, share in shares_of(job).items():
            session = self._find(name)
            if session is not None:
                session.counts.busy_s += seconds * share
                session.latest_job = JobTime(rows, seconds)

    def finish(self, job: ModelJob, result: DraftOutcome) -> None:
        """Take back the job of one session of a batch that was run, with its outcome."""
        if isinstance(result, FlowEdgeError):
            self._fail(job.session, named(result, self.device))
            return
        if (session := self._sessions.get(job.session)) is None:
            return
        if isinstance(job, Verify) and isinstance(result, Walk):
            if (event := session.verified(job, result)) is None:
                return
            self._carry_out(session, session.strategy.handle(event))
            if result.error is not None and job.session in self._sessions:
                self._fail(job.session, named(result.error, self.device))
                return
            self._report_results(session)
            self._grant(session, *session.side_routes)
            self._begin_waiting()
        elif isinstance(job, GrowDraft) and isinstance(result, DraftLayer):
            if not are_scores(result):
                of_drafter = NonFiniteError.of(f"the scores of drafter {self.spec.drafter_name}")
                self.fail_session(job.session, named(of_drafter, self.device))
                return
            layer = session.grown(job, result)
            if layer is not None:
                self._carry_out(session, session.strategy.handle(layer))
                self._report_results(session)

    def fail(self, job: DraftJob, error: FlowEdgeError) -> None:
        """Take back a job that could not be run: its sessions end with the error."""
        for name in sessions_of(job):
            self._fail(name, named(error, self.device))

    def _fail(self, name: str, error: FlowEdgeError, route: int = TARGET, *, in_band: bool = True) -> None:
        """End a session with an error, unless it is begun again (see TargetSessions.begin_again)."""
        session = self._sessions.get(name) if route == TARGET else None
        if session is None or not self.target.begin_again(session, error, in_band=in_band):
            self.target.forget([name])
            self.fail_session(name, error)

    def sent(self, name: str, num_bytes: int) -> None:
        """Add bytes sent in-band to a session's report."""
        session = self._find(name)
        if session is not None:
            session.counts.bytes_sent += num_bytes

    def _find(self, name: str) -> DraftSession | None:
        """Return a session that is open, or whose end has not come back."""
        return self._sessions.get(name) or self._closing.get(name)

    def _send_prompt(self, session: DraftSession, route: int) -> None:
        segment = session.ledger(route).next_prompt_segment(self.spec.prefill_rows)
        if segment is not None:
            self._outgoing[route].put(segment)

    def _receive_credit(self, name: str, route: int) -> None:
        session = self._sessions.get(name)
        if session is None:
            return
        session.ledger(route).grant()
        if route == TARGET:
            self._prefill.taken_up(name)
        else:
            self._send_prompt(session, route)
        self._grant(session, route)

    def _grant(self, session: DraftSession, *routes: int) -> None:
        """Tell the strategy of new credits, once it decodes."""
        for route in routes:
            for _ in range(session.take_grants(route)):
                if session.name in self._sessions:
                    self._carry_out(session, session.strategy.handle(CreditGranted(route)))

    def _receive_result(self, segment: Segment, route: int, sender: str) -> None:
        session = self._sessions.get(segment.session)
        if session is None:
            return
        if route == TARGET:
            self._prefill.observe(segment)
            session.take_result(segment, sender)
            if session.request.rows_only:
                self._put_out_rows(session)
            else:
                self._report_results(session)
            self._begin_waiting()
            return
        event = session.side_route(route).take_result(segment)
        if event is not None and isinstance(session.strategy, HierarchicalStrategy):
            self._carry_out(session, session.strategy.handle(event))
        self._grant(session, route)

    def _put_out_rows(self, session: DraftSession) -> None:
        while (rows := session.next_rows()) is not None:
            self._outputs.append(Rows(session.name, rows))
        if session.all_rows_returned:
            session.answer.finish_reason = "rows"
            self._close(session)

    def _report_results(self, session: DraftSession) -> None:
        """Tell the strategy of returned segments that take no job: without live rows, or drawn elsewhere."""
        while session.name in self._sessions:
            try:
                event = session.take_empty() or session.take_drawn()
            except ProtocolError as error:
                self.fail_session(session.name, error)
                return
            if event is None:
                return
            self._carry_out(session, session.strategy.handle(event))
            self._grant(session, *session.side_routes)

    def _receive_close(self, close: Close, route: int) -> None:
        if route == TARGET:
            self.target.take_close(close)
        session = self._closing.get(close.session)
        if session is not None:
            session.reports[route] = close.reports
            if len(session.reports) == len(session.routes):
                self._finished(self._closing.pop(close.session))

    def _finished(self, session: DraftSession) -> None:
        """Put out the end of a closed session; a session that was cancelled or failed has no such output."""
        if session.answer.finish_reason is not None:
            self._outputs.append(session.finished(self.device))

    def _carry_out(self, session: DraftSession, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Emit():
                    if self._emit(session, command):
                        self._close(session, [c for c in commands if isinstance(c, AcceptPath)])
                        return
                case AcceptPath():
                    self._outgoing[TARGET].prune(session.prune(command))
                case Send() | Append():
                    rows = len(command.tokens) if isinstance(command, Send) else 1
                    self._claim_rows(session, rows)
                    if session.name not in self._sessions:
                        return
                    self._outgoing[TARGET].put(session.segment_of(command))
                case SendTo():
                    self._outgoing[command.route].put(session.side_route(command.route).segment(command))
                case Keep():
                    prune = session.side_route(command.route).keep(command)
                    if prune is not None:
                        self._outgoing[command.route].prune(prune)
                case Grow():
                    session.grow(command)
                case Withdraw():
                    session.grow(None)
        session.counts.rollbacks = session.strategy.rollbacks
        session.counts.plain_tokens_per_s = session.strategy.plain_tokens_per_s

    def _claim_rows(self, session: DraftSession, rows: int) -> None:
        """Have a session hold cache rows for so many further rows; where there are too few, others pause.

        The session itself pauses where it is the latest of the least urgent. It ends where it has outgrown
        its caches, and keeps its rows; nobody else gets the room before it arrives again.
        """
        if session.outgrows(rows):
            self._end(session)
            self._outputs.append(Failed(session.name, OutgrownError(self.device)))
            return
        if not self.admission.grow(session, session.rows + rows):
            return
        self._forget_retained()
        while session.name in self._sessions and (pausing := self.admission.displaced()) is not None:
            self.fail_session(pausing, PreemptedError(self.device))

    def _forget_retained(self) -> None:
        """Forget retained sessions, the least recently used first, as long as there are too many rows."""
        while self.target.num_retained and (over := self.admission.rows_over(self.target.retained_rows)):
            self.target.forget_oldest(over)

    def _begin_waiting(self) -> None:
        """Open the sessions that need not wait any more; some may share less than they were admitted with."""
        self.target.begin_waiting(self._sessions.values())
        self._free_rows()

    def _free_rows(self) -> None:
        """Have retained sessions be forgotten, then open ones pause, until the others have room."""
        self._forget_retained()
        while (pausing := self.admission.displaced()) in self._sessions:
            self.fail_session(pausing, PreemptedError(self.device))

    def _find_prefix(self, session: DraftSession) -> SharedPrefix | None:
        return self.target.find_prefix(session, self._sessions.values())

    def _emit(self, session: DraftSession, emit: Emit) -> bool:
        """Put out certain tokens; return whether the generation ends with them."""
        tokens = session.answer.put_out(emit.tokens, self._now)
        session.counts.put_out(len(tokens.token_ids), self._now)
        self._outputs.append(tokens)
        return session.answer.finish_reason is not None

    def _close(self, session: DraftSession, last: Sequence[AcceptPath] = (), *, keep: bool = True) -> None:
        """End a session, and open those that wait for its room; `last` and `keep` are as for `_end`."""
        self._end(session, last, keep=keep)
        self.admit()

    def _end(self, session: DraftSession, last: Sequence[AcceptPath] = (), *, keep: bool = True) -> None:
        """End a session; `last` and `keep` are as for TargetSessions.end."""
        name = session.name
        self._closing[name] = self._sessions.pop(name)
        session.counts.verifiers = session.strategy.verifiers
        session.strategy.end()
        self.target.end(session, last, self.admission.rows_after(session), keep=keep)
        for route in session.side_routes:
            self._outgoing[route].close(name)
        # Each device hears of this end before it hears of the next session, so its cache is free already.
        length = session.answer.length if session.answer.finish_reason is not None else None
        self.admission.release(name, self._now, length, session.most_drafts)
        self._begin_waiting()
