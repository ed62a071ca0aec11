"""The ledger of a session: its credits, and what may be sent of the prompt."""

from __future__ import annotations

from flowedge.protocol.pipeline_ledger import PipelineLedger


def test_credits_add_up_and_are_told_of_once():
    ledger = PipelineLedger("s", (1, 2, 3))
    ledger.grant()
    ledger.grant()
    assert (ledger.credits, ledger.take_grants(), ledger.take_grants()) == (3, 3, 0)


def test_a_prompt_is_sent_in_order_while_there_are_credits():
    ledger = PipelineLedger("s", (1, 2, 3, 4, 5), reused=1)
    assert ledger.next_prompt_segment(2).payload.tolist() == [2, 3]
    assert ledger.next_prompt_segment(2) is None
    ledger.grant()
    assert ledger.next_prompt_segment(8).payload.tolist() == [4, 5]
    ledger.grant()
    assert ledger.next_prompt_segment(1) is None
