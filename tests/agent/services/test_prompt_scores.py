"""Log-probabilities of a prompt's tokens, over real processes: those of transformers' own forward."""

from __future__ import annotations

import math

import pytest
import torch

from flowedge.client import Client
from flowedge.models.check.reference import ReferenceModel


def reference(ids: list[int]) -> torch.Tensor:
    """The log-probabilities [n, vocab] after each of n tokens."""
    model = ReferenceModel.load("bundled").model
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0]
    return torch.log_softmax(logits.double(), dim=-1)


@pytest.mark.parametrize("rows", [1, 2, 17, 300])
@pytest.mark.parametrize(("strategy", "likeliest"), [("auto", 0), ("autoregressive", 3)])
def test_they_are_those_of_the_model(cluster4: str, rows: int, strategy: str, likeliest: int) -> None:
    ids = [0, *((7 * place) % 3000 + 10 for place in range(1, rows))]
    with Client(cluster4) as client:
        asked = {"strategy": strategy, "max_new_tokens": 3, "ignore_eos": True}
        answer = client.generate(prompt_ids=ids, echo=True, logprobs=likeliest, **asked).result()
        plain = client.generate(prompt_ids=ids, **asked).result()
    assert answer.token_ids == plain.token_ids
    first, *others = answer.prompt_logprobs
    assert math.isnan(first.logprob)
    assert [each.token_id for each in answer.prompt_logprobs] == ids
    expected = reference(ids)
    for place, each in enumerate(others):
        assert each.logprob == pytest.approx(float(expected[place][each.token_id]), abs=2e-4)
        best = expected[place].topk(likeliest) if likeliest else None
        assert len(each.likeliest) == likeliest
        if best is not None:
            assert [like.logprob for like in each.likeliest] == pytest.approx(best.values.tolist(), abs=2e-4)
    assert len(answer.logprobs) == 3


def test_only_who_asks_for_both_gets_them(cluster4: str) -> None:
    with Client(cluster4) as client:
        for options in ({"echo": True}, {"logprobs": 1}):
            answer = client.generate(prompt_ids=[5, 6, 7], max_new_tokens=1, **options).result()
            assert answer.prompt_logprobs == []
