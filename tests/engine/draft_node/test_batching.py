"""Which jobs of its sessions a draft node runs together."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flowedge.core.errors import ProtocolError
from flowedge.engine.draft_node.batching import next_draft_job
from flowedge.engine.jobs import ExtendDraft, GrowDraft, sessions_of
from flowedge.strategies.commands import Grow


@dataclass
class Wishes:
    """The strategy of a session: the nodes that it has drafted beside others, if any."""

    joining: int = 0
    computed_alone: bool = False
    asked: list[int] = field(default_factory=list)

    def join_draft(self, nodes: int) -> Grow | None:
        self.asked.append(nodes)
        return grow(self.joining) if self.joining else None


@dataclass
class Session:
    """A session that wants this many nodes drafted."""

    name: str
    wanted: int = 0
    strategy: Wishes = field(default_factory=Wishes)
    prefilled: bool = True
    broken: bool = False

    def next_verify(self) -> None:
        return None

    def next_draft(self) -> GrowDraft | ExtendDraft | None:
        if self.broken:
            raise ProtocolError("its rows are not those that were sent")
        if not self.prefilled:
            return ExtendDraft(self.name, None, np.arange(3))
        count, self.wanted = self.wanted, 0
        nodes = np.arange(count)
        return GrowDraft(self.name, 0, nodes, nodes, nodes, 2, None, None) if count else None

    def grow(self, command: Grow) -> None:
        self.wanted = len(command.nodes)


def grow(count: int) -> Grow:
    nodes = tuple(range(count))
    return Grow(0, nodes, nodes, nodes, 2)


def served(*sessions: Session) -> str:
    job = next_draft_job({session.name: session for session in sessions}, lambda *_: None)
    return "" if job is None else "".join(sessions_of(job))


def test_layers_of_all_sessions_are_drafted_in_one_forward():
    assert served(Session("a", 2), Session("b"), Session("c", 3)) == "ac"


def test_a_session_may_join_a_forward_that_is_made_for_others():
    joins, stays = Wishes(joining=3), Wishes()
    assert served(Session("a", strategy=joins), Session("b", 2), Session("c", strategy=stays)) == "ba"
    assert (joins.asked, stays.asked) == ([2], [5]), "each is told how many nodes there are before its own"


def test_nobody_joins_where_no_layer_is_drafted():
    joins = Wishes(joining=3)
    assert served(Session("a", strategy=joins)) == ""
    assert served(Session("a", strategy=joins), Session("b", prefilled=False)) == "b"
    assert not joins.asked


def test_nobody_joins_a_session_that_takes_turns():
    joins = Wishes(joining=3)
    assert served(Session("a", 2, Wishes(computed_alone=True)), Session("b", strategy=joins)) == "a"
    assert not joins.asked


def test_a_prompt_goes_on_beside_layers():
    joins = Wishes(joining=3)
    assert served(Session("a", 2), Session("b", strategy=joins, prefilled=False)) == "ab"
    assert not joins.asked


def test_a_session_that_fails_does_not_hold_up_the_others():
    failed: list[str] = []
    sessions = [Session("a", 1), Session("b", broken=True), Session("c", 2)]
    job = next_draft_job({each.name: each for each in sessions}, lambda name, _: failed.append(name))
    assert job is not None
    assert ("".join(sessions_of(job)), failed) == ("ac", ["b"])
