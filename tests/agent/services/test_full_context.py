"""Requests and answers as long as a real pipeline takes them."""

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


def test_a_draft_node_tells_how_large_a_request_may_be(cluster4: str) -> None:
    """A request of as many bytes is read, and refused for its prompt; with a byte more, for its size."""
    with Client(cluster4) as client:
        most = client.status().request_bytes
        with pytest.raises(CapacityError, match=f"has [0-9]+ bytes; the maximum is {most}") as caught:
            client.generate(text="a" * most).result()
        beside = int(str(caught.value).split(" has ")[1].split()[0]) - most  # the other fields
        for length, problem in ((most - beside, "the prompt has"), (most - beside + 1, f"has {most + 1} ")):
            with pytest.raises(CapacityError, match=problem):
                client.generate(text="a" * length).result()
        assert client.generate(text="Hello", max_new_tokens=1).result().token_ids
