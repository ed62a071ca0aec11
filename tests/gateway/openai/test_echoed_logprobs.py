"""Log-probabilities of echoed prompts, as programs that measure models ask for them: transformers' own."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch

from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from tests.gateway.application import GatewayHere

TEXT = "def add(a, b):\n    return a + b  # caf\u00e9\n"


@cache
def tokenizer() -> Any:
    return load_tokenizer(Checkpoint.open("bundled"))


@cache
def expected(ids: tuple[int, ...]) -> torch.Tensor:
    """The log-probabilities [n, vocab] after each of n tokens."""
    with torch.inference_mode():
        logits = ReferenceModel.load("bundled").model(torch.tensor([ids])).logits[0]
    return torch.log_softmax(logits.double(), dim=-1)


def asked(gateway: GatewayHere, **given: Any) -> Any:
    body = {"model": "bundled", "echo": True, "logprobs": 1, "temperature": 0, **given}
    with gateway.client() as client:
        answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("tokens", [0, 1])
def test_token_ids_as_lm_eval_sends_them(served: GatewayHere, tokens: int) -> None:
    ids = tuple(tokenizer().encode(TEXT))
    answer = asked(served, prompt=[list(ids), list(ids[:5])], max_tokens=tokens, seed=1234).json()
    for choice, prompt in zip(answer["choices"], (ids, ids[:5]), strict=True):
        listed = choice["logprobs"]
        assert {len(each) for each in listed.values()} == {len(prompt) + tokens}
        assert (listed["token_logprobs"][0], listed["top_logprobs"][0]) == (None, None)
        for place in range(1, len(prompt)):
            after = expected(ids)[place - 1]
            assert listed["token_logprobs"][place] == pytest.approx(float(after[ids[place]]), abs=2e-4)
            best = max(listed["top_logprobs"][place].values())
            assert best == pytest.approx(float(after.max()), abs=2e-4)
            is_likeliest = int(after.argmax()) == ids[place]
            assert (listed["token_logprobs"][place] == best) == is_likeliest  # as lm-eval compares them
    assert answer["usage"]["completion_tokens"] == 2 * tokens


@pytest.mark.parametrize("tokens", [0, 6])
def test_texts_whole_and_streamed(served: GatewayHere, tokens: int) -> None:
    (choice,) = asked(served, prompt=TEXT, max_tokens=tokens, logprobs=2).json()["choices"]
    text, listed = choice["text"], choice["logprobs"]
    assert text.startswith(TEXT)
    assert (text == TEXT) == (tokens == 0)
    for token, place in zip(listed["tokens"], listed["text_offset"], strict=True):
        word = token.lstrip(" ")
        known = "\ufffd" in token or token in tokenizer().all_special_tokens
        assert known or word in text[place : place + len(token)]
    stream = asked(served, prompt=TEXT, max_tokens=tokens, logprobs=2, stream=True).text.splitlines()
    parts = [json.loads(line[6:])["choices"][0] for line in stream if line.startswith("data: {")]
    assert "".join(part["text"] for part in parts) == text
    for name, values in listed.items():
        assert [each for part in parts if part["logprobs"] for each in part["logprobs"][name]] == values
    assert parts[-1]["finish_reason"] == choice["finish_reason"] == "length"


def test_the_end_token_of_an_answer_has_no_place_in_its_text(served: GatewayHere) -> None:
    end = {"logit_bias": {"1": 100}, "max_tokens": 3}
    (choice,) = asked(served, prompt="a b", echo=False, **end).json()["choices"]
    assert (choice["text"], choice["logprobs"]["text_offset"], choice["finish_reason"]) == ("", [0], "stop")
