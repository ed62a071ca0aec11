"""What holds after each event of a history, and at its end."""

from __future__ import annotations

from flowedge.engine.draft_node import DraftNode
from flowedge.engine.stage import Stage
from tests.engine.exact_model import ExactHead
from tests.support.seams import begins_again, draft_sessions, is_empty, stage_sessions


def check_invariants(node: DraftNode, stages: list[Stage], route: int) -> None:
    """Check the invariants of a route after an event, for every session that is open on all its devices."""
    for name, session in draft_sessions(node).items():
        if route not in session.routes:
            assert all(name not in stage_sessions(stage) for stage in stages)
            continue
        if begins_again(node, name):
            continue  # stages may still have it as it was opened first
        sequence = session.ledger(route).sequence
        for stage in stages:
            held = stage_sessions(stage).get(name)
            if held is None or held.epoch != sequence.epoch:
                continue
            tail = held.tail
            draft = tail.cached - sequence.context
            assert tail.cached <= sequence.length, "a cache is a prefix of the draft node's sequence"
            if draft > 0:
                assert tail.context == sequence.context
                assert tail.parents.tolist() == sequence.parents[:draft].tolist()
                assert tail.positions.tolist() == sequence.positions[:draft].tolist()
        for stage in stages:
            held = stage_sessions(stage).get(name)
            if held is not None:
                assert held.epoch <= sequence.epoch
                assert held.fence <= held.epoch
                assert set(held.maps) == set(range(held.fence + 1, held.epoch + 1))


def check_clean(node: DraftNode, stages: list[Stage], executors, head: ExactHead) -> None:
    """Nothing is left of any session."""
    assert is_empty(node)
    assert not head.open
    assert not head.kept
    for stage, executor in zip(stages, executors, strict=True):
        assert is_empty(stage), "a session, a message or a tombstone stays"
        assert not executor.caches
