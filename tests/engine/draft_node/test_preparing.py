"""A request that asks to be fitted has as many new tokens as the checks accept, and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowedge.core.errors import CapacityError
from flowedge.core.request import Finished, Request
from flowedge.core.sampling import SamplingParams
from flowedge.engine.draft_node.cache_budget import AdmissionLimits
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.draft_node.preparing import context_tokens, fitted_request
from flowedge.strategies.registry import make_strategy
from tests.engine.draft_node.draft_node_loop import Loop
from tests.engine.draft_node.draft_node_loop import request as small_request

ROOMS = st.one_of(st.just(1 << 40), st.integers(0, 60))


def _request(prompt: int, new: int, strategy: str, rows: int, **changes: Any) -> Request:
    options = {} if strategy == "autoregressive" else {"max_draft_rows": rows}
    sampling = SamplingParams()
    return Request("s", (1,) * prompt, sampling, new, strategy=strategy, strategy_options=options, **changes)


def _accepted(request: Request, spec: DraftNodeSpec, limits: AdmissionLimits) -> bool:
    """Whether a draft node takes the request as it is."""
    loop = Loop(limits, max_positions=spec.max_positions)
    try:
        loop.start(replace(request, fit_context=False))
    except CapacityError:
        return False
    return True


@given(
    prompt=st.integers(1, 40),
    new=st.integers(1, 40),
    strategy=st.sampled_from(["autoregressive", "flowspec"]),
    rows=st.integers(1, 30),
    positions=st.integers(1, 60),
    rooms=st.tuples(ROOMS, ROOMS, ROOMS),
)
def test_it_is_the_most_that_the_checks_accept(
    prompt: int, new: int, strategy: str, rows: int, positions: int, rooms: tuple[int, int, int]
) -> None:
    spec = DraftNodeSpec(width=1, max_positions=positions)
    total_rows, session_rows, drafter_rows = rooms
    limits = AdmissionLimits(total_rows=total_rows, session_rows=session_rows, drafter_rows=drafter_rows)
    asked = _request(prompt, new, strategy, rows, fit_context=True)
    chosen = make_strategy(asked.strategy, asked.strategy_options)
    fitted = fitted_request(asked, chosen, spec, limits)
    assert fitted == replace(asked, max_new_tokens=fitted.max_new_tokens)
    assert 1 <= fitted.max_new_tokens <= new
    if _accepted(fitted, spec, limits):
        longer = replace(asked, max_new_tokens=fitted.max_new_tokens + 1)
        assert fitted.max_new_tokens == new or not _accepted(longer, spec, limits)
    else:
        assert fitted.max_new_tokens == 1


def test_other_requests_stay_as_they_are() -> None:
    spec, limits = DraftNodeSpec(width=1, max_positions=10), AdmissionLimits()
    for changes in ({}, {"fit_context": True, "rows_only": True}):
        asked = _request(5, 40, "autoregressive", 0, **changes)
        assert fitted_request(asked, make_strategy("autoregressive", {}), spec, limits) is asked


def test_the_context_is_that_of_the_model_or_of_the_caches() -> None:
    spec = DraftNodeSpec(width=1, max_positions=100)
    assert context_tokens(spec, AdmissionLimits()) == 100
    assert context_tokens(spec, AdmissionLimits(session_rows=4096)) == 100
    assert context_tokens(spec, AdmissionLimits(session_rows=70, total_rows=80)) == 70
    assert context_tokens(spec, AdmissionLimits(session_rows=70, total_rows=60)) == 60


@pytest.mark.parametrize("strategy", ["autoregressive", "flowspec"])
def test_a_fitted_answer_is_the_beginning_of_the_long_one_and_is_cut(strategy: str) -> None:
    whole, cut = Loop(), Loop(max_positions=12)
    whole.start(small_request(strategy=strategy, max_new_tokens=100))
    whole.run()
    cut.start(small_request(strategy=strategy, max_new_tokens=100, fit_context=True))
    cut.run()
    assert cut.tokens("s") == whole.tokens("s")[:7]
    end = cut.of("s")[-1]
    assert isinstance(end, Finished)
    assert end.reason == "length"
