"""SpecPipe-DB on scripts of events: several sessions whose levels enter the pipeline together."""

from __future__ import annotations

from flowedge.core.request import Request
from flowedge.core.sampling import SamplingParams
from flowedge.strategies.auto.measured import MeasuredPipeline
from flowedge.strategies.commands import Grow, Send
from flowedge.strategies.pipeline_steps import PipelineSteps
from flowedge.strategies.published.specpipe_db import SpecPipeDB
from flowedge.strategies.published.stepwise import LevelBatchSettings, SpecPipe, SpecPipeSettings
from flowedge.strategies.registry import session_strategy
from tests.strategies.script import Script, ask_together
from tests.strategies.script_layers import FIRST, SECOND

SMALL = LevelBatchSettings(width=2, children=2)


def scripts(count: int, stages: int, granted: int = 9) -> list[Script]:
    steps = PipelineSteps()
    return [
        Script(SpecPipeDB(SMALL, steps), granted=granted, stages=stages, together=True) for _ in range(count)
    ]


def test_a_lone_session_sends_what_specpipe_sends():
    script, plain = (
        *scripts(1, stages=2),
        Script(SpecPipe(SpecPipeSettings(width=2, children=2)), granted=9, stages=2),
    )
    for each in (script, plain):
        ask_together(each)
        each.layer(*FIRST)
        ask_together(each)
        each.layer(*SECOND)
        ask_together(each)
        each.verified([5], 2)
        ask_together(each)
        each.verified([6], 77)
        ask_together(each)
        each.layer(*FIRST)
        ask_together(each)
    assert script.sends == plain.sends
    assert script.grow == plain.grow
    assert script.emitted == plain.emitted


def test_levels_go_when_all_sessions_have_theirs():
    one, two = scripts(2, stages=2)
    assert ask_together(one, two) == [1, 1], "the roots go at once"
    one.layer(*FIRST)
    assert ask_together(one, two) == [1, 1], "the other session's layer is being drafted"
    two.layer(*FIRST)
    assert ask_together(one, two) == [2, 2]
    assert [one.sends[1], two.sends[1]] == [Send((1, 2), (5, 5))] * 2, "each has its full width"


def test_a_step_begins_when_the_oldest_has_returned_for_all_sessions():
    one, two = scripts(2, stages=2)
    ask_together(one, two)
    for script in (one, two):
        script.layer(*FIRST)
    ask_together(one, two)
    for script in (one, two):
        script.layer(*SECOND)
    one.verified([5], 2)
    assert ask_together(one, two) == [2, 2]
    two.verified([5], 1)
    assert ask_together(one, two) == [3, 3]
    assert [one.sends[2], two.sends[2]] == [Send((5, 6), (6, 6)), Send((3, 4), (6, 6))]


def test_the_root_after_a_miss_goes_with_the_next_step_of_the_others():
    one, two = scripts(2, stages=2)
    ask_together(one, two)
    for script in (one, two):
        script.layer(*FIRST)
    ask_together(one, two)
    for script in (one, two):
        script.layer(*SECOND)
    assert one.verified([5], 77)[-1] == Grow(2, (0,), (-1,), (77,), 2)
    assert ask_together(one, two) == [2, 2], "the other's level is still in flight"
    two.verified([5], 2)
    assert ask_together(one, two) == [3, 3]
    assert one.sends[2] == Send((77,), (-1,))
    assert one.returned() == []


def test_a_session_that_ends_holds_nobody_up():
    one, two = scripts(2, stages=1)
    assert ask_together(one, two) == [1, 1]
    one.layer(*FIRST)
    one.verified([5], 2)
    assert ask_together(one) == [1]
    two.strategy.end()
    assert ask_together(one) == [2]


def test_a_session_waits_for_the_credit_of_another():
    one, two = scripts(2, stages=2, granted=1)
    ask_together(one, two)
    for script in (one, two):
        script.layer(*FIRST)
    one.credit()
    assert ask_together(one, two) == [1, 1]
    two.credit()
    assert ask_together(one, two) == [2, 2]


def test_nothing_is_waited_for_that_a_full_budget_of_rows_rules_out():
    steps = PipelineSteps()
    full = Script(
        SpecPipeDB(LevelBatchSettings(width=2, children=2, max_draft_rows=1), steps), granted=9, stages=3
    )
    other = Script(SpecPipeDB(SMALL, steps), granted=9, stages=3, together=True)
    ask_together(full, other)
    other.layer(*FIRST)
    assert ask_together(full, other) == [1, 2], "though the first session's layer is being drafted"


def test_sessions_of_a_pipeline_share_its_steps():
    measured = MeasuredPipeline()
    request = Request("s", (1,), SamplingParams(), 4, strategy="specpipe_db", strategy_options={"width": 2.0})
    strategies = [session_strategy(request, measured) for _ in range(2)]
    one, two = [Script(strategy, granted=9, stages=2, together=True) for strategy in strategies]
    ask_together(one, two)
    one.layer(*FIRST)
    assert ask_together(one, two) == [1, 1]
