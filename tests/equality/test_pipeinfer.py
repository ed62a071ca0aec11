"""PipeInfer without one of its parts: the plain model's tokens, whatever is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowedge.core.sampling import SamplingParams
from tests.equality.conftest import Pair, request, token_ids

ABLATIONS = {
    "no continuous speculation": {"continuous": 0, "batch_rows": 8},
    "no cancellation": {"cancel": 0},
    "fixed cut-off": {"recovery": 0, "decay": 0},
    "forks, no cancellation": {"cancel": 0, "split": 0.05},
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", ABLATIONS.values(), ids=list(ABLATIONS))
def test_what_is_left_out_changes_no_token(pair: Pair, options: dict[str, float]) -> None:
    asked = request(pair.prompt(40), SamplingParams(temperature=1.0, seed=5), 24, "pipeinfer")
    plain = pair.pipeline([3, 3, 2]).generate(replace(asked, strategy="autoregressive"))
    left_out = pair.pipeline([3, 3, 2]).generate(replace(asked, strategy_options=options))
    assert token_ids(left_out) == token_ids(plain)
