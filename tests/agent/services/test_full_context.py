"""Answers at the end of the model's context, of a real pipeline."""

from __future__ import annotations

import pytest

from flowedge.client import Client
from flowedge.core.errors import CapacityError

POSITIONS = 2048  # of the bundled model
ROOM = 9


@pytest.mark.parametrize("strategy", ["auto", "autoregressive"])
def test_an_answer_that_is_fitted_ends_with_the_context(cluster4: str, strategy: str) -> None:
    ids = [5 + place % 90 for place in range(POSITIONS - ROOM)]
    with Client(cluster4) as client:
        assert client.status().context_tokens == POSITIONS
        plain = client.generate(prompt_ids=ids, max_new_tokens=ROOM, ignore_eos=True, strategy=strategy)
        with pytest.raises(CapacityError, match=r"the model takes 2048"):
            client.generate(prompt_ids=ids, max_new_tokens=ROOM + 1, strategy=strategy).result()
        fitted = client.generate(
            prompt_ids=ids, max_new_tokens=500, ignore_eos=True, fit_context=True, strategy=strategy
        )
        assert fitted.result().token_ids == plain.result().token_ids
        assert (len(fitted.token_ids), fitted.finish_reason) == (ROOM, "length")


def test_a_prompt_that_fills_the_context_is_refused(cluster4: str) -> None:
    with Client(cluster4) as client, pytest.raises(CapacityError, match=r"make 2049; the model takes 2048"):
        client.generate(prompt_ids=[5] * POSITIONS, max_new_tokens=500, fit_context=True).result()
