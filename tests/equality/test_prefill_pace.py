"""A long prompt does not hold up the sessions that answer, on the virtual clock."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from flowedge.core.request import Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.virtual_pipeline import VirtualPipeline
from tests.engine.histories import NoText
from tests.equality.conftest import Pair, expected, outputs_of, request, token_ids
from tests.support.breadth import dealt

pytestmark = pytest.mark.slow
ANSWERING = ("s0", "s1", "s2")
TOKENS = {"autoregressive": 60, "naive_pp": 90, "auto": 90}  # of an answer that lasts longer than the prompt
SETTLED_S = 2.0  # all of them answer
ARRIVAL_S = 3.0  # of the long prompt
LONG_PROMPT = 1500
ROW_S = (0.0005, 0.001, 0.002)  # a chunk of 128 rows takes as long as 1.9, 2.8 and 4.7 forwards of one row
MOST_FACTOR = 3.0


def start_answers(pipeline: VirtualPipeline, pair: Pair, strategy: str, count: int) -> None:
    for index, session in enumerate(ANSWERING):
        asked = request(pair.prompt(30 + index), SamplingParams(), count, strategy, session)
        pipeline.start(asked, 0.02 * index)


def gaps(pipeline: VirtualPipeline, start: float, stop: float) -> list[float]:
    """Return the seconds between the outputs of each answering session that end between two times."""
    found = []
    for session in ANSWERING:
        times = [timed.time for timed in outputs_of(pipeline, session) if isinstance(timed.output, Tokens)]
        assert times[-1] > stop, "it does not answer for as long as the prompt is computed"
        found += [after - before for before, after in pairwise(times) if start < after <= stop]
    return found


@pytest.mark.proof
@pytest.mark.parametrize(
    ("strategy", "row_s"),
    dealt(product(TOKENS, ROW_S), ("autoregressive", 0.0005).__eq__),
)
def test_answers_go_on_while_a_long_prompt_is_computed(pair: Pair, strategy: str, row_s: float) -> None:
    """No gap between two outputs is longer than three times the p99 without the prompt."""
    undisturbed, disturbed = (
        pair.pipeline([2, 2, 2, 2], costs=FixedCosts(row_s=row_s), make_text=NoText) for _ in range(2)
    )
    for pipeline in (undisturbed, disturbed):
        start_answers(pipeline, pair, strategy, TOKENS[strategy])
    long = request(pair.prompt(LONG_PROMPT), SamplingParams(), 2, "autoregressive", "long")
    disturbed.start(long, ARRIVAL_S)
    for pipeline in (undisturbed, disturbed):
        pipeline.run()
    of_long = outputs_of(disturbed, "long")
    assert token_ids(of_long) == expected(long.prompt, long.sampling, 2, "none")
    without = gaps(undisturbed, SETTLED_S, SETTLED_S + 3.0)
    during = gaps(disturbed, ARRIVAL_S, of_long[0].time)
    assert max(during) <= MOST_FACTOR * np.quantile(without, 0.99)
