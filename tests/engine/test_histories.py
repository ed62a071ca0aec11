"""Random histories of the protocol on the exact model, and proof that they would notice a bug."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flowedge.core.messages import Prune, Segment
from flowedge.core.request import Finished
from flowedge.core.sampling import Walk
from flowedge.engine.draft_node import draft_session, returned_draws
from flowedge.engine.draft_node.session_answer import SessionAnswer
from flowedge.engine.jobs import Forward, ForwardBatch
from flowedge.engine.stage import cached_rows as tail
from flowedge.engine.stage import computing_segments, stage_session
from flowedge.engine.stage.cached_rows import CachedRows
from flowedge.engine.stage.computing_segments import ComputingSegments
from flowedge.engine.stage.session_table import SessionTable
from flowedge.engine.stage.stage import Stage
from flowedge.engine.stage.stage_session import WithheldTaps
from flowedge.engine.stage.waiting_segments import WaitingSegments
from flowedge.planning.virtual_pipeline import VirtualPipeline
from flowedge.protocol import epochs
from flowedge.protocol import pipeline_ledger as flight
from flowedge.protocol.outbox import Outbox
from flowedge.protocol.row_sequence import RowSequence
from flowedge.strategies import flowspec
from flowedge.strategies.tree_commands import advance
from tests.engine import exact_model, histories
from tests.engine.deliberate_bugs import Bug, Patch, check_noticed, replaced, wrapped
from tests.engine.histories import run_history
from tests.support.blocks import fifths
from tests.support.seams import being_computed, inbox, stage_sessions

PROVED, SHARD = 10_000, 250
# Histories that meet every case about three times, chosen among the first.
# fmt: off
MET = [2, 30, 34, 59, 63, 96, 110, 170, 179, 186, 246, 259, 264, 271, 288, 294, 311, 314, 333, 341, 356, 357,
       358, 364, 3153]
# fmt: on


@pytest.mark.proof
@pytest.mark.timeout(900)  # many, on a core that may be shared
@pytest.mark.parametrize("first", [pytest.param(n, id=f"shard{n}") for n in range(0, PROVED, SHARD)])
def test_random_histories_are_exact(first):
    assert sum(run_history(seed) for seed in range(first, first + SHARD)) > 3 * SHARD


@pytest.mark.proof
@pytest.mark.timeout(900)  # many, on a core that may be shared
@pytest.mark.parametrize("seeds", list(fifths(range(20_000, 20_300))), ids=lambda seeds: f"shard{seeds[0]}")
def test_the_invariants_hold_after_every_event(seeds):
    for seed in seeds:
        run_history(seed, check_always=True)


def test_these_histories_are_exact_and_meet_every_case(monkeypatch):
    """The cases that histories are made for occur in them, and the invariants hold after every event."""
    pipelines = []

    class Remembered(VirtualPipeline):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            pipelines.append(self)

    monkeypatch.setattr(histories, "VirtualPipeline", Remembered)
    batches = []

    def computed_together(self: exact_model.ExactStage, job):
        if isinstance(job, ForwardBatch):
            batches.append(job)
        return run(self, job)

    run = exact_model.ExactStage.run
    monkeypatch.setattr(exact_model.ExactStage, "run", computed_together)
    for seed in MET:
        run_history(seed, check_always=True)
    assert {len(batch.forwards) for batch in batches} >= {2, 3, 4}
    assert any(batch.dead for batch in batches)
    assert any(any(each.dead for each in batch.forwards) and not batch.dead for batch in batches)
    ends = [t.output for p in pipelines for t in p.outputs if isinstance(t.output, Finished)]
    assert {end.reason for end in ends} == {"eos", "length"}
    assert {len(p.stages) for p in pipelines} == {1, 2, 3, 4, 5, 8}
    assert any(p.draft_node.load().sessions == 0 and len(p.stages) > 1 for p in pipelines)
    reports = [report for end in ends for report in end.reports[1:]]
    for field in ("rows_trimmed", "rows_wasted", "aborted", "rows_computed"):
        assert sum(getattr(report, field) for report in reports) > 20, field
    counters = [end.counters for end in ends]
    assert sum(c.empty_segments for c in counters) > 20
    assert any(max(c.accepted_per_segment, default=0) >= 3 for c in counters)
    assert any(len(c.accepted_per_round) < c.prunes for c in counters), "rounds that went on"


@pytest.mark.proof
def test_histories_without_one_of_flowspecs_mechanisms_are_exact(monkeypatch):
    switched: set[tuple[str, str, int]] = set()

    def ablated(rng: np.random.Generator) -> tuple[str, dict[str, float]]:
        name = str(rng.choice(["flowspec", "flowspec_paper", "flowspec_no_sbd", "pruned_pp"]))
        switches = {switch: int(rng.integers(2)) for switch in ("context_aware", "score_aware", "early_stop")}
        switched.update((name, *switch) for switch in switches.items())
        return name, {**histories.random_options(name, rng), **switches}

    monkeypatch.setattr(histories, "random_strategy", ablated)
    assert sum(run_history(seed) for seed in range(20)) > 300
    assert len(switched) > 20, "of 4 x 3 x 2"


# ------------------------------------------------------------------------------------------ deliberate bugs


def all_of(*bugs: Bug) -> Bug:
    def patch(monkeypatch: Patch) -> None:
        for bug in bugs:
            bug(monkeypatch)

    return patch


def restamped_only(segment: Segment, prune: Prune):
    return replace(segment, epoch=prune.epoch), np.arange(segment.num_rows)


def parents_as_they_are(prune: Prune, parents):
    return parents


def off_by_one(segment: Segment, prune: Prune):
    mapped, kept = epochs.map_segment(segment, prune)
    return replace(mapped, first_row=mapped.first_row + 1), kept


def sequence_parents_as_they_are(original, self: RowSequence, accepted, draft, **changes):
    parents = [self._parents[row - self.context] for row in draft]
    prune = original(self, accepted, draft, **changes)
    self._parents = parents
    return prune


def context_parents_kept(prune: Prune, parents):
    """The row of an accepted parent stays where CONTEXT belongs."""
    return epochs.renumbered(prune, parents)


def outbox_untrimmed(original, self: Outbox, prune: Prune) -> int:
    self._messages.appendleft(prune)
    return 0


def outbox_prune_last(original, self: Outbox, prune: Prune) -> int:
    trimmed = original(self, prune)
    self._messages.remove(prune)
    self._messages.append(prune)
    return trimmed


def outbox_prune_lost(original, self: Outbox, prune: Prune) -> int:
    trimmed = original(self, prune)
    if len(self._messages) > 1:
        self._messages.remove(prune)
    return trimmed


def without_gather(original, self: CachedRows, prune: Prune) -> None:
    original(self, prune)
    self.slots = self.gathered_until + np.arange(len(self.slots))


def gather_without_accepted(original, self: CachedRows, prune: Prune) -> None:
    """Accepted rows are not moved, even if rejected rows lie between them."""
    original(self, prune)
    accepted = self.context - self.gathered_until
    self.slots[:accepted] = self.gathered_until + np.arange(accepted)


def positions_unmoved(original, self: CachedRows, prune: Prune) -> None:
    before = self.positions
    original(self, prune)
    self.positions = before[: len(self.positions)]


def inbox_untrimmed(original, self: Stage, session, prune: Prune) -> None:
    waiting = [replace(s, epoch=prune.epoch) if s.session == prune.session else s for s in inbox(self)]
    original(self, session, prune)
    self._batching.waiting = WaitingSegments(self.spec.max_rows)
    for segment in waiting:
        self._batching.waiting.put(segment)


def computing_untrimmed(original, self: Stage, session, prune: Prune) -> None:
    before = [
        (each, each.segment, each.offsets)
        for each in [each for each in being_computed(self) if each.forward.session == prune.session]
    ]
    original(self, session, prune)
    for computing, segment, offsets in before:
        computing.segment = replace(segment, epoch=prune.epoch)
        computing.offsets = offsets


def always_aborting(original, self: Stage, session, prune: Prune) -> None:
    original(self, session, prune)
    for computing in [each for each in being_computed(self) if each.forward.session == prune.session]:
        computing.forward.dead = True


def other_sessions_pruned(original, self: Stage, session, prune: Prune) -> None:
    original(self, session, prune)
    for computing in being_computed(self):
        computing.forward.dead = True


def fence_at_express(original, self: Stage, prune: Prune, *, in_band: bool) -> None:
    """The express copy is taken for the fence too."""
    original(self, prune, in_band=in_band)
    session = stage_sessions(self).get(prune.session)
    if session is not None:
        session.fence = session.epoch
        session.maps.clear()


def fence_ignored(original, self: Stage, segment: Segment) -> None:
    """A segment's epoch is ignored: its rows are taken to be of the stage's own epoch."""
    session = stage_sessions(self).get(segment.session)
    if session is None:
        return original(self, segment)
    fence, session.fence = session.fence, session.epoch
    try:
        return original(self, replace(segment, epoch=session.epoch))
    finally:
        session.fence = fence


def maps_dropped_by_count(original, self: Stage, session, prune: Prune) -> None:
    """The last two prunes are kept; it was tried, and broke."""
    original(self, session, prune)
    for epoch in sorted(session.maps)[:-2]:
        del session.maps[epoch]


def prune_passed_on_twice(original, self: Stage, prune: Prune, *, in_band: bool) -> None:
    original(self, prune, in_band=in_band)
    if in_band and prune.session in stage_sessions(self):
        self._outgoing.in_band.put(prune)


def held_prunes_applied_at_once(original, self: Stage, prune: Prune, *, in_band: bool) -> None:
    session = stage_sessions(self).get(prune.session)
    if not in_band and session is not None and prune.epoch > session.epoch + 1:
        session.epoch = prune.epoch - 1
    original(self, prune, in_band=in_band)


def no_tombstone(original, self: Stage, close, *, in_band: bool) -> None:
    original(self, close, in_band=in_band)
    if not in_band:
        self._table.ended.pop(close.session, None)


def closes_not_remembered(original, self: SessionTable, name: str) -> None:
    self._passed.clear()
    original(self, name)


def credit_forgotten(original, self: Stage, segment: Segment):
    with pytest.MonkeyPatch.context() as patch:
        if segment.num_rows == 0:
            patch.setattr(self._outgoing, "credit", lambda session: None)
        original(self, segment)


def subtree_with_siblings(original, self: RowSequence, root: int) -> list[int]:
    parent = self._parents[root - self.context]
    siblings = [row for row, other in enumerate(self._parents, start=self.context) if other == parent]
    return sorted({each for row in siblings for each in original(self, row)})


def subtree_without_grandchildren(original, self: RowSequence, root: int) -> list[int]:
    return [row for row in original(self, root) if row == root or self._parents[row - self.context] == root]


def subtree_dies(tree, event):
    tree, emit, accept = advance(tree, event)
    return tree, emit, replace(accept, root=None)


def walk_one_too_far(tokens, parents, draw) -> Walk:
    """The drawn token's row is taken for accepted when any row carries it."""
    result = exact_walk(tokens, parents, draw)
    for row, token in enumerate(tokens):
        if token == result.token and row > result.accepted[-1]:
            return Walk((*result.accepted, row), draw(row))
    return result


def node_keeps_old_result(original, self: draft_session.DraftSession, command) -> Prune:
    results = self._results
    prune = original(self, command)
    self._results = results
    return prune


def one_row_too_many(original, self, end, context):
    return original(self, min(end + 1, self.length), context)


def kept_taps_unpruned(original, self: WithheldTaps, prune: Prune):
    before = self._rows
    tapped = original(self, prune)
    self._rows = before[prune.accepted :]
    return tapped


def taps_of_the_first_rows(original, self: WithheldTaps, prune: Prune):
    before = self._rows
    tapped = original(self, prune)
    return None if tapped is None else np.stack(before[: prune.accepted])


def results_of_another_session(original, self: ComputingSegments, job, output):
    taken = original(self, job, output)
    segments, results = [each for each, _ in taken], [result for _, result in taken]
    return list(zip(segments, results[::-1], strict=True))


def batch_without_the_last(original, self: Outbox, segments) -> None:
    original(self, segments[:-1] if len(segments) > 1 else segments)


def path_without_the_root(original, self: SessionAnswer, position: int):
    path = original(self, position)
    return path if path is None else replace(path, tokens=path.tokens[:-1])


def one_token_said_twice(original, self: SessionAnswer, tokens, likelihoods) -> None:
    original(self, tokens if len(tokens) < 3 else [*tokens, tokens[-1]], likelihoods)


def dead_parts_not_gathered(original, self: exact_model.ExactStage, job: Forward):
    return None if job.dead else original(self, job)


exact_walk = exact_model.walk

# By name: the number of a history that notices the bug soon, and the bug.
BUGS: dict[str, tuple[int, Bug]] = {
    "outbox neither trimmed nor restamped": (30, wrapped(Outbox, "prune", outbox_untrimmed)),
    "outbox puts the prune behind what it restamps": (30, wrapped(Outbox, "prune", outbox_prune_last)),
    "outbox loses the prune": (107, wrapped(Outbox, "prune", outbox_prune_lost)),
    "rows renumbered off by one": (105, replaced(stage_session, "map_segment", off_by_one)),
    "parents in segments not renumbered": (0, replaced(epochs, "renumbered_parents", parents_as_they_are)),
    "parents in a stage's tail not renumbered": (
        105,
        replaced(tail, "renumbered_parents", parents_as_they_are),
    ),
    "parents in the sequence not renumbered": (
        48,
        wrapped(RowSequence, "_retain", sequence_parents_as_they_are),
    ),
    "accepted parents not made context": (105, replaced(tail, "renumbered_parents", context_parents_kept)),
    "gather skipped": (202, wrapped(CachedRows, "apply", without_gather)),
    "gather leaves the accepted rows out": (202, wrapped(CachedRows, "apply", gather_without_accepted)),
    "positions of the tail not gathered": (105, wrapped(CachedRows, "apply", positions_unmoved)),
    "a stage trims nothing": (
        291,
        all_of(
            replaced(computing_segments, "map_segment", restamped_only),
            replaced(stage_session, "map_segment", restamped_only),
        ),
    ),
    "inbox not trimmed": (170, wrapped(Stage, "_apply", inbox_untrimmed)),
    "the segment being computed not trimmed": (291, wrapped(Stage, "_apply", computing_untrimmed)),
    "a computation with live rows aborted": (291, wrapped(Stage, "_apply", always_aborting)),
    "a prune aborts another session": (291, wrapped(Stage, "_apply", other_sessions_pruned)),
    "express taken for the fence": (291, wrapped(Stage, "_receive_prune", fence_at_express)),
    "the stamp ignored": (48, wrapped(Stage, "_receive_segment", fence_ignored)),
    "maps dropped by count": (171, wrapped(Stage, "_apply", maps_dropped_by_count)),
    "a prune passed on twice": (105, wrapped(Stage, "_receive_prune", prune_passed_on_twice)),
    "prunes applied out of order": (68, wrapped(Stage, "_receive_prune", held_prunes_applied_at_once)),
    "no tombstone": (230, wrapped(Stage, "_receive_close", no_tombstone)),
    "late express closes leave tombstones": (
        250,
        wrapped(SessionTable, "close_early", closes_not_remembered),
    ),
    "no credit for empty segments": (30, wrapped(Stage, "_take_up", credit_forgotten)),
    "siblings retained": (105, wrapped(RowSequence, "_subtree", subtree_with_siblings)),
    "grandchildren pruned": (0, wrapped(RowSequence, "_subtree", subtree_without_grandchildren)),
    "the subtree of the new root pruned": (291, replaced(flowspec, "advance", subtree_dies)),
    "a row accepted that was not drawn": (160, replaced(exact_model, "walk", walk_one_too_far)),
    "the node trims no results": (56, replaced(draft_session, "map_segment", restamped_only)),
    "what returns late is not trimmed": (105, replaced(flight, "map_segment", restamped_only)),
    "a rolled back row stays in a middle model": (148, wrapped(RowSequence, "keep", one_row_too_many)),
    "kept taps stay when their rows are pruned": (56, wrapped(WithheldTaps, "apply", kept_taps_unpruned)),
    "taps of other rows than the accepted": (199, wrapped(WithheldTaps, "apply", taps_of_the_first_rows)),
    "results of a batch given to other sessions": (
        107,
        wrapped(ComputingSegments, "take", results_of_another_session),
    ),
    "a batch loses a segment": (107, wrapped(Outbox, "put_together", batch_without_the_last)),
    "the cache of a dead part of a batch not gathered": (
        110,
        wrapped(exact_model.ExactStage, "_run_forward", dead_parts_not_gathered),
    ),
    "the rules see another answer": (207, wrapped(SessionAnswer, "draw", one_token_said_twice)),
    "drafts follow the rules from a node too high": (
        105,
        wrapped(SessionAnswer, "path_to", path_without_the_root),
    ),
    "a last stage that does not draw keeps its taps": (
        185,
        replaced(returned_draws, "may_keep_taps", lambda request, _place: not request.rows_only),
    ),
    "results that wait are not trimmed": (
        56,
        wrapped(draft_session.DraftSession, "prune", node_keeps_old_result),
    ),
}


@pytest.mark.proof
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_the_protocol_is_noticed(bug, monkeypatch):
    check_noticed(bug, *BUGS[bug], monkeypatch)
