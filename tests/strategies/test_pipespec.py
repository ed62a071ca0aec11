"""PipeSpec on scripts of events, and the chain that its models share."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.errors import BadRequestError, ProtocolError
from flowedge.core.messages import CONTEXT, Segment
from flowedge.core.request import VerifierCounts
from flowedge.engine.draft_node.route_session import RouteSession
from flowedge.strategies.commands import AcceptPath, Emit, Grow, Keep, Send, SendTo
from flowedge.strategies.events import CreditGranted, Layer, Predicted, Prefilled, Returned, Verified
from flowedge.strategies.published.hierarchy import Hierarchy
from flowedge.strategies.published.pipespec import PipeSpec, PipeSpecSync
from flowedge.strategies.published.token_chain import TokenChain
from flowedge.strategies.registry import make_strategy
from flowedge.strategies.settings import HierarchySettings, LookaheadSettings
from tests.strategies.script import Script
from tests.support.seams import draft_chain


class Run:
    """A session of prompt 0 .. 9 whose first drawn token is 100, with middle models on routes 1 and so on."""

    def __init__(self, middles: int = 0, strategy: Hierarchy | None = None, **settings: int) -> None:
        self.strategy = strategy or PipeSpec(HierarchySettings(**settings))
        self.grow: Grow | None = None
        self.commands: list[object] = []
        self.event(Prefilled(10, 100, credits=1, routes=tuple(range(1, 1 + middles))))
        for route in range(1, 1 + middles):
            self.event(CreditGranted(route))

    def event(self, event) -> list[object]:
        self.commands = list(self.strategy.handle(event))
        grown = [command for command in self.commands if isinstance(command, Grow)]
        self.grow = grown[-1] if grown else self.grow
        return self.commands

    def draft(self, *tokens: int) -> None:
        """The drafter proposes these, one after the other."""
        for token in tokens:
            asked = self.grow
            assert asked is not None
            proposed = [[token]] if token >= 0 else [[]]
            self.event(Layer(asked.growth, asked.nodes, np.array(proposed, dtype=np.int64), np.zeros((1, 1))))

    def predict(self, route: int, position: int, *tokens: int) -> list[object]:
        return self.event(Predicted(route, position, tokens))

    def chain(self) -> tuple[int, ...]:
        chain = draft_chain(self.strategy)
        return chain.tokens(chain.root, chain.end)


def test_two_models_draft_on_while_batches_of_what_there_is_are_verified():
    run = Run()
    assert Send((100,), (CONTEXT,)) in run.commands
    run.draft(1, 2, 3)
    assert run.grow is not None
    assert run.grow.tokens == (3,), "drafting never waits"
    assert run.event(CreditGranted()) == [Send((1, 2, 3), (10, 11, 12))], "all that has accumulated"
    run.draft(4)
    assert run.event(CreditGranted()) == [Send((4,), (13,))], "the batch before is still under way"
    assert run.event(Verified((10, 11), 2)) == [Emit((1, 2)), AcceptPath((10, 11), 12, ends_round=False)]
    assert run.grow.growth == 1, "the drafter goes on in its own branch"
    assert run.chain() == (2, 3, 4)


def test_a_rejection_by_the_target_rolls_everyone_back():
    run = Run(middles=2)
    run.draft(1, 2)
    run.predict(1, 10, 1)
    run.predict(2, 10, 1)
    commands = run.event(Verified((10,), 7))
    assert commands[:4] == [
        Emit((7,)),
        AcceptPath((10,), None, ends_round=True),
        Keep(1, 11, 11),
        Keep(2, 11, 11),
    ]
    assert run.chain() == (7,)
    assert Grow(2, (0,), (-1,), (7,), 1) in commands, "a new growth, with the true features"
    assert run.strategy.rollbacks == (0, 0, 1)
    assert run.event(CreditGranted(1)) == [SendTo(1, 11, (7,))]
    assert run.event(CreditGranted(2)) == [SendTo(2, 11, (7,))]
    assert run.event(CreditGranted()) == [Send((7,), (CONTEXT,))]


def test_a_rejection_in_the_middle_cascades_to_earlier_models_alone():
    run = Run(middles=2)
    run.draft(1, 2, 3, 4)
    assert run.event(CreditGranted(1)) == [SendTo(1, 11, (1, 2, 3, 4))]
    run.predict(1, 10, 1)
    assert run.event(CreditGranted(2)) == [SendTo(2, 11, (1,))], "only what the model before has accepted"
    run.predict(1, 11, 2, 9)
    assert run.chain() == (100, 1, 2, 9), "its own token takes the place of the rejected one"
    assert Keep(1, 13, 10) in run.commands
    assert run.grow is not None
    assert run.grow.tokens == (9,), "the drafter goes on from there, in the growth it has"
    assert run.grow.parents == (2,)
    assert run.grow.growth == 1
    assert run.strategy.rollbacks == (1, 0, 0)
    assert run.event(CreditGranted(1)) == [SendTo(1, 13, (9,))]
    run.predict(2, 10, 6)
    assert run.chain() == (100, 6)
    assert [c for c in run.commands if isinstance(c, Keep)] == [Keep(1, 11, 10), Keep(2, 11, 10)]
    assert run.strategy.rollbacks == (1, 1, 0)


def test_a_model_goes_on_by_itself_and_the_drafter_takes_its_tokens_over():
    run = Run(middles=1)
    asked = run.grow
    run.predict(1, 10, 5)
    assert run.chain() == (100, 5), "there was no draft yet"
    assert run.event(CreditGranted(1)) == [SendTo(1, 11, (5,))]
    assert run.event(CreditGranted()) == [Send((5,), (10,))]
    assert run.grow is asked, "one token is asked for at a time"
    run.draft(8)
    assert run.chain() == (100, 5), "a proposal that comes too late is none"
    assert run.grow is not None
    assert run.grow.tokens == (5,)
    run.draft(6)
    assert run.chain() == (100, 5, 6)


def test_a_draw_that_the_drafter_has_not_got_to_begins_a_growth_there():
    run = Run(middles=1)
    run.predict(1, 10, 5)
    run.event(CreditGranted(1))
    run.predict(1, 11, 6)
    run.event(CreditGranted())
    assert run.event(Verified((10, 11), 6))[:2] == [Emit((5, 6)), AcceptPath((10, 11), 12, ends_round=False)]
    assert run.grow == Grow(2, (0,), (-1,), (6,), 1)


def test_a_late_prediction_of_what_is_settled_changes_nothing():
    run = Run(middles=1)
    run.draft(1, 2)
    run.event(CreditGranted())
    run.event(Verified((10,), 3))
    run.draft(4)
    run.predict(1, 10, 9)
    assert run.chain() == (3, 4)
    assert run.strategy.rollbacks == (0, 1)


def test_the_chain_is_bounded_and_a_silent_drafter_is_no_obstacle():
    run = Run(middles=1, max_draft_rows=3)
    run.draft(1, 2)
    asked = run.grow
    assert run.event(CreditGranted(1)) == [SendTo(1, 11, (1,))], "what it predicts has room"
    assert run.grow is asked
    run.event(CreditGranted())
    run.event(Verified((10,), 1))
    assert run.grow is not asked
    run.draft(-1)
    assert run.event(CreditGranted(1)) == [SendTo(1, 12, (2,))]
    run.predict(1, 12, 7)
    assert run.chain() == (1, 2, 7)


def test_fewer_models_leave_the_first_middle_models_out():
    assert PipeSpec(HierarchySettings(models=2)).max_side_routes == 0
    assert PipeSpec(HierarchySettings(models=4)).max_side_routes == 2
    with pytest.raises(BadRequestError, match="a drafter and the target"):
        make_strategy("pipespec", {"models": 1})


def test_buffers_are_prefixes_of_each_other():
    chain = TokenChain(3, 100, 10)
    for token in (1, 2, 3):
        chain.append(token)
    assert not chain.predict(2, 11, [1, 2]), "a later model may agree before an earlier one"
    assert [chain.verified(level) for level in range(3)] == [14, 13, 13]
    assert chain.predict(1, 11, [8, 8, 8]), "what a later model has settled is settled"
    assert chain.tokens(10, chain.end) == (100, 1, 2, 8)
    assert chain.draw(2, 2, 2)
    assert (chain.root, chain.rows, chain.rollbacks) == (12, 2, [1, 0, 0])


def test_a_model_waits_for_its_lookahead_while_a_model_before_it_works():
    run = Run(middles=1, lookahead=2)
    assert run.commands == [], "the drafter works"
    run.draft(1)
    assert run.commands[:-1] == [], "one token of two"
    run.draft(2)
    assert SendTo(1, 10, (100, 1, 2)) in run.commands, "its own last token is no draft token"
    run.predict(1, 10, 1, 2, 3)
    assert Send((100, 1, 2, 3), (CONTEXT, 10, 11, 12)) in run.commands


def test_a_model_takes_less_than_its_lookahead_from_models_that_have_no_more():
    run = Run(middles=1, lookahead=8)
    run.draft(1, -1)
    assert run.commands == [SendTo(1, 10, (100, 1))], "the drafter proposes nothing more"
    run.predict(1, 10, 1, 2)
    assert run.grow is not None
    assert run.grow.tokens == (2,), "the drafter has a token to go on from"
    run.draft(-1)
    run.event(CreditGranted(1))
    assert run.commands == [SendTo(1, 12, (2,))]
    full = Run(lookahead=8, max_draft_rows=4)
    full.draft(1, 2, 3)
    assert full.commands == [Send((100, 1, 2, 3), (CONTEXT, 10, 11, 12))], "there is no room for more"


def test_a_model_may_have_one_batch_at_a_time():
    run = Run(batches=1)
    run.draft(1, 2)
    assert run.event(CreditGranted()) == [], "its first batch is in flight"
    assert Send((1, 2), (CONTEXT, 11)) in run.event(Verified((10,), 1))
    middle = Run(middles=1, batches=1)
    middle.draft(1)
    assert middle.event(CreditGranted(1)) == []
    assert middle.event(Returned(route=1)) == [SendTo(1, 11, (1,))], "a batch without a live row is over too"


def test_the_checks_of_draft_tokens_are_counted_by_their_place():
    run = Run()
    assert run.strategy.verifiers == (VerifierCounts(),)
    run.draft(1, 2, 3)
    run.event(CreditGranted())
    run.event(Verified((10,), 1))  # no draft token in the batch, but the drafter has the drawn token
    run.event(Verified((11, 12), 9))  # of 2 and 3 the second is rejected
    run.event(CreditGranted())
    run.event(Verified((13,), 5))  # the drafter has nothing yet that 5 could be compared with
    assert run.strategy.verifiers == (
        VerifierCounts(steps=3, verifying=1, drafted=2, tokens=4, compared=(2, 1), survived=(2, 0)),
    )


def test_a_middle_model_counts_its_checks_too():
    run = Run(middles=1)
    run.draft(1, 2, 3)
    run.predict(1, 10, 1)
    run.event(CreditGranted(1))
    run.predict(1, 11, 2, 8, 8)
    counted = VerifierCounts(steps=2, verifying=1, drafted=2, tokens=3, compared=(2, 1), survived=(2, 0))
    assert run.strategy.verifiers == (counted, VerifierCounts())


def test_three_synchronous_models_work_one_after_the_other():
    run = Run(middles=1, strategy=PipeSpecSync(LookaheadSettings(lookahead=3)))
    assert run.commands == [], "the drafter works"
    run.draft(1, 2)
    assert run.commands == [SendTo(1, 10, (100, 1, 2))], "with its own token it can have three"
    run.event(CreditGranted(1))
    assert run.predict(1, 10, 1, 7) == [
        Keep(1, 12, 10),
        SendTo(1, 12, (7,)),
    ], "one token is missing, which the middle model adds by itself"
    run.event(CreditGranted(1))
    assert run.predict(1, 12, 4) == [Send((100, 1, 7, 4), (CONTEXT, 10, 11, 12))], "the target's window"
    run.event(CreditGranted())
    assert run.event(Verified((10,), 5)) == [
        Emit((5,)),
        AcceptPath((10,), None, ends_round=True),
        Keep(1, 11, 11),
        Grow(2, (0,), (-1,), (5,), 1),
    ]
    assert run.strategy.rollbacks == (1, 1)


def test_synchronous_models_do_without_a_drafter_that_is_silent():
    run = Run(middles=1, strategy=PipeSpecSync(LookaheadSettings(lookahead=2)))
    run.draft(-1)
    assert run.commands == [SendTo(1, 10, (100,))]
    run.event(CreditGranted(1))
    run.predict(1, 10, 1)
    assert run.commands == [SendTo(1, 11, (1,))]
    assert run.predict(1, 11, 2) == [Send((100, 1, 2), (CONTEXT, 10, 11))]


def test_the_synchronous_form_drafts_a_chain_then_verifies_it():
    script = Script(PipeSpecSync(LookaheadSettings(lookahead=3)), granted=4)
    for token in (1, 2, 3):
        assert script.sends == []
        script.layer([[token]], [[0.9]])
    assert script.sends == [Send((0, 1, 2, 3), (CONTEXT, 5, 6, 7))]
    assert script.grow is None, "nothing is drafted while it is under way"
    script.verified([5, 6], 9)
    assert script.emitted == [0, 1, 9]
    assert make_strategy("pipespec_sync", {}).max_draft_rows == 9, "8 tokens and the root"


# ------------------------------------------------------------------------------- what a middle model answers


def answered(segment: Segment, *tokens: int, dtype: str = "int32") -> Segment:
    return Segment(**{**segment.__dict__, "payload": np.array(tokens, dtype=dtype)})


def ready_session() -> RouteSession:
    session = RouteSession("s", 1, prompt=(3, 4), capacity=8, vocab_size=50)
    prompt = session.ledger.next_prompt_segment(128)
    assert prompt is not None
    assert not session.ready
    assert session.take_result(answered(prompt, 1, 2)) is None
    session.ledger.grant()
    session.ledger.grant()
    return session


def test_rows_that_have_come_back_become_context():
    session = ready_session()
    sent = session.segment(SendTo(1, 2, (5, 6)))
    assert sent.parents.tolist() == [CONTEXT, 2]
    assert session.keep(Keep(1, end=4, context=4)) is None, "nothing of it has come back"
    assert session.take_result(answered(sent, 6, 7)) == Predicted(1, 2, (6, 7))
    prune = session.keep(Keep(1, end=3, context=4))
    assert prune is not None
    assert (prune.context, prune.accepted, prune.retained.tolist()) == (2, 1, [2])
    with pytest.raises(ValueError, match="from position 4"):
        session.segment(SendTo(1, 4, (1,)))


@pytest.mark.parametrize(
    ("tokens", "dtype", "said"),
    [
        ((6, 50), "int32", "outside 0..49"),
        ((6, -1), "int32", "outside 0..49"),
        ((6,), "int32", r"int32 \[1\], not int32 \[2\]"),
        ((6.0, 7.0), "float32", "float32"),
    ],
)
def test_an_answer_is_data(tokens, dtype, said):
    session = ready_session()
    sent = session.segment(SendTo(1, 2, (5, 6)))
    with pytest.raises(ProtocolError, match=said):
        session.take_result(answered(sent, *tokens, dtype=dtype))
