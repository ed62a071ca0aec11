"""Sessions that look up in earlier answers, several at once: the tokens, and what is kept of whom."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from flowedge.core.errors import DeviceLostError
from flowedge.core.request import Finished
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.lookup.answer_store import AnswerStore, EndedAnswer
from flowedge.planning.virtual_pipeline import VirtualPipeline
from tests.equality.conftest import Pair, drafter_of, drawn, outputs_of, request, token_ids
from tests.equality.test_mixed_sessions import check_answers, plain, run_together
from tests.support.mixed_sessions import mixed_sessions

TENANTS = ("anna", "bert")
TOKENS = 16


class KeptAnswers(AnswerStore):
    """A store that notes what it is given."""

    def __init__(self, most_tokens: int) -> None:
        super().__init__(most_tokens)
        self.given: list[EndedAnswer] = []

    def add(self, answer: EndedAnswer) -> None:
        self.given.append(answer)
        super().add(answer)


def pipeline(
    pair: Pair, store: AnswerStore, names: str = "bundled+ngram", kept_rows: int = 0
) -> VirtualPipeline:
    return pair.pipeline([3, 5], drafter=drafter_of(pair, names), answers=store, kept_rows=kept_rows)


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "kept_rows"), [(3, 600), pytest.param(4, 0, marks=pytest.mark.proof)], ids=["kept", "dropped"]
)
def test_sessions_of_two_tenants_at_once(pair: Pair, seed: int, kept_rows: int) -> None:
    seen = []
    for _ in range(2):
        store = KeptAnswers(120)  # fewer tokens than are drawn, so that answers leave while others are read
        served = pipeline(pair, store, kept_rows=kept_rows)
        sessions = mixed_sessions(np.random.default_rng(seed), pair.prompt, TOKENS, 4.0)
        sessions = [
            replace(each, request=replace(each.request, tenant=TENANTS[number % 2]))
            for number, each in enumerate(sessions)
        ]
        run_together(served, sessions)
        check_answers(served, sessions, plain, kept_rows)
        whole: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        for each in sessions:
            outputs = outputs_of(served, each.request.session)
            if outputs and isinstance(outputs[-1].output, Finished):
                whole[each.request.tenant].append((*each.request.prompt[-12:], *drawn(outputs)))
        for tenant in TENANTS:
            kept = [answer.tokens for answer in store.given if answer.tenant == tenant]
            assert {*kept} <= {*whole[tenant]}, "the caller's own answers, each as it was put out, to its end"
        assert len(store.given) >= 3
        seen.append((store.given, [timed.output for timed in served.outputs]))
        for each in sessions:
            drafter_of(pair, "bundled+ngram").close(each.request.session)
    assert seen[0] == seen[1], "the same history drafts the same"


def ask(pair: Pair, store: AnswerStore, tenant: str) -> tuple[int, ...]:
    """Ask one question of a tenant; return the tokens that each segment brought."""
    asked = replace(request(pair.prompt(40), SamplingParams(), TOKENS, "naive_pp"), tenant=tenant)
    outputs = pipeline(pair, store, "ngram").generate(asked)
    assert token_ids(outputs) == plain(asked)
    ended = outputs[-1].output
    assert isinstance(ended, Finished)
    return ended.counters.accepted_per_segment


def test_drafts_of_one_tenant_show_nothing_of_another(pair: Pair) -> None:
    store = AnswerStore(1000)
    first = ask(pair, store, "anna")
    assert ask(pair, store, "bert") == first, "as if nobody had asked that before"
    assert len(ask(pair, store, "anna")) < len(first)


def test_a_cancelled_answer_is_not_kept(pair: Pair) -> None:
    store = KeptAnswers(1000)
    served = pipeline(pair, store)
    served.start(request(pair.prompt(40), SamplingParams(), 64, "auto"))
    while not drawn(outputs_of(served, "s")):
        assert served.step()
    served.cancel("s")
    served.run()
    assert store.given == []


def test_an_answer_that_goes_on_after_a_loss_is_kept_once_and_whole(pair: Pair) -> None:
    store = KeptAnswers(1000)
    asked = request(pair.prompt(40), SamplingParams(), TOKENS, "auto")
    lost = pipeline(pair, store)
    lost.start(asked)
    while not (begun := drawn(outputs_of(lost, "s"))):
        assert lost.step()
    lost.draft_node.device_lost(DeviceLostError("v1", "it is silent"))
    lost.run()
    assert store.given == []
    whole = plain(asked)
    assert token_ids(pipeline(pair, store).generate(asked.behind(begun))) == whole[len(begun) :]
    assert store.given == [EndedAnswer("", (*asked.prompt[-12:], *whole))]
