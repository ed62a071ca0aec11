"""What holds after each event of a history, and at its end."""

from __future__ import annotations

from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.stage.stage import Stage
from tests.engine.exact_model import ExactHead
from tests.support.seams import begins_again, draft_sessions, is_empty, stage_sessions


def check_invariants(node: DraftNode, stages: list[Stage], route: int) -> None:
    """Check the invariants of a route after an event, for every session that is open on all its devices."""
    open_on = [stage_sessions(stage) for stage in stages]
    for name, session in draft_sessions(node).items():
        if route not in session.routes:
            assert not any(name in sessions for sessions in open_on)
            continue
        if begins_again(node, name):
            continue  # stages may still have it as it was opened first
        sequence = session.ledger(route).sequence
        epoch, context, length = sequence.epoch, sequence.context, sequence.length
        for held in filter(None, (sessions.get(name) for sessions in open_on)):
            assert max(held.fence, held.epoch) <= epoch
            assert held.fence <= held.epoch or held.held[held.epoch + 1].in_turn
            assert list(held.maps) == list(range(held.fence + 1, held.epoch + 1))
            tail = held.tail
            if held.epoch != epoch:
                continue
            draft = tail.cached - context
            assert tail.cached <= length, "a cache is a prefix of the draft node's sequence"
            if draft > 0:
                assert tail.context == context
                assert tail.parents.tolist() == sequence.parents[:draft].tolist()
                assert tail.positions.tolist() == sequence.positions[:draft].tolist()


def check_clean(node: DraftNode, stages: list[Stage], executors, head: ExactHead) -> None:
    """Nothing is left of any session."""
    assert is_empty(node)
    assert not head.open
    assert not head.kept
    for stage, executor in zip(stages, executors, strict=True):
        assert is_empty(stage), "a session, a message or a tombstone stays"
        assert not executor.caches
