"""Rules on the wire, over real processes: the plain model under the same rules puts out the same tokens."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import grpc
import pytest

from flowedge.core.grammar import GrammarSource
from flowedge.core.sampling import LogitRules, SamplingParams
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids, load_tokenizer
from flowedge.text.token_bytes import TokenBytes
from flowedge.v1 import generation_pb2 as pb
from flowedge.v1.generation_pb2_grpc import GenerationStub
from tests.support.breadth import dealt_thinly
from tests.support.ruled_reference import llguidance_matcher, ruled_answer

PROMPT = "A farmer has 12 hens. How many eggs do they lay in a week?"
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"eggs": {"type": "integer"}, "why": {"type": "string", "maxLength": 20}},
        "required": ["eggs", "why"],
        "additionalProperties": False,
    }
)
TOKENS = 40
EOS = 1  # of the bundled model


@cache
def model() -> ReferenceModel:
    return ReferenceModel.load("bundled")


@cache
def tokenizer() -> Any:
    return load_tokenizer(Checkpoint.open("bundled"))


def ask(address: str, **fields: Any) -> tuple[pb.Started, list[pb.Chunk], pb.Finished]:
    request = pb.GenerateRequest(prompt=PROMPT, options=json.dumps({"max_new_tokens": TOKENS, **fields}))
    with grpc.insecure_channel(address) as channel:
        events = list(GenerationStub(channel).Generate(request, timeout=120))
    started = next(event.started for event in events if event.HasField("started"))
    return started, [e.chunk for e in events if e.HasField("chunk")], events[-1].finished


CHOICES = [f"egg number {number} of the second basket" for number in range(40)]  # more than 256 characters
FIELDS: dict[str, tuple[dict[str, Any], LogitRules]] = {
    "penalties": (
        {"presence_penalty": 0.8, "frequency_penalty": 0.5},
        LogitRules(presence_penalty=0.8, frequency_penalty=0.5),
    ),
    "repetition": ({"repetition_penalty": 1.4}, LogitRules(repetition_penalty=1.4)),
    "likely tokens": (
        {"min_p": 0.15, "repetition_penalty": 0.9, "logit_bias": {5: 3.0}},
        LogitRules(min_p=0.15, repetition_penalty=0.9, logit_bias=((5, 3.0),)),
    ),
    "no early end": (
        {"min_tokens": 12, "logit_bias": {EOS: 20.0}},
        LogitRules(min_tokens=12, logit_bias=((EOS, 20.0),)),
    ),
    "bias": ({"logit_bias": {5: 3.0, 300: -100.0}}, LogitRules(logit_bias=((5, 3.0), (300, -100.0)))),
    "schema": (
        {"grammar": {"rule": "json_schema", "text": SCHEMA}, "logprobs": 3},
        LogitRules(grammar=GrammarSource("json_schema", SCHEMA), logprobs=3),
    ),
    "object": (
        {"grammar": {"rule": "json_object"}, "logprobs": 0},
        LogitRules(grammar=GrammarSource("json_object"), logprobs=0),
    ),
    "lark, to its end": (
        {"grammar": {"rule": "lark", "text": 'start: "egg " /[a-z ]{3,9}/'}, "ignore_eos": True},
        LogitRules(grammar=GrammarSource("lark", 'start: "egg " /[a-z ]{3,9}/', ends_late=True)),
    ),
    "long": (
        {"grammar": {"rule": "regex", "text": "|".join(CHOICES)}},
        LogitRules(grammar=GrammarSource("regex", "|".join(CHOICES))),
    ),
    "regex": (
        {"grammar": {"rule": "regex", "text": r"\d{1,3} eggs"}, "frequency_penalty": 1.0},
        LogitRules(grammar=GrammarSource("regex", r"\d{1,3} eggs"), frequency_penalty=1.0),
    ),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("name", "strategy"), dealt_thinly(list(FIELDS), ["auto", "flowspec", "autoregressive"])
)
def test_answers_are_those_of_the_plain_model(cluster4: str, name: str, strategy: str) -> None:
    fields, rules = FIELDS[name]
    sampling = SamplingParams() if name == "object" else SamplingParams(temperature=0.8, top_p=0.95, seed=3)
    started, chunks, finished = ask(
        cluster4,
        strategy=strategy,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        **fields,
    )
    eos = eos_token_ids(Checkpoint.open("bundled"), tokenizer())
    grammar = None if rules.grammar is None else llguidance_matcher(tokenizer(), rules.grammar, eos)
    prompt = tuple(started.prompt_ids)
    expected, _ = ruled_answer(model(), prompt, sampling, TOKENS, rules, grammar, eos)
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    assert tuple(tokens) == expected
    assert finished.reason == ("eos" if expected[-1] in eos else "length")
    check_logprobs(chunks, rules.logprobs)


def check_logprobs(chunks: list[pb.Chunk], likeliest: int | None) -> None:
    if likeliest is None:
        assert not any(chunk.logprobs for chunk in chunks)
        return
    token_bytes = TokenBytes(tokenizer())
    for chunk in chunks:
        assert [each.token_id for each in chunk.logprobs] == list(chunk.token_ids)
        for each in chunk.logprobs:
            assert each.logprob <= 0
            assert each.text == token_bytes.of(each.token_id)
            assert len(each.likeliest) == likeliest
            assert all(other.text == token_bytes.of(other.token_id) for other in each.likeliest)
            values = [other.logprob for other in each.likeliest]
            assert values == sorted(values, reverse=True)
            assert each.logprob <= max(values, default=0.0)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"presence_penalty": 3.0}, "presence_penalty is 3.0"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be from 0.01 to 10"),
        ({"repetition_penalty": 5e-324}, "repetition_penalty is 5e-324; it must be from 0.01 to 10"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty is nan"),
        ({"logit_bias": {4096: 1.0}}, "logit_bias names token 4096; the model has tokens 0 to 4095"),
        ({"logit_bias": {1: 1000.0}}, "logit_bias[1] is 1000.0"),
        ({"logit_bias": dict.fromkeys(range(2000), 1.0)}, "logit_bias has 2000 tokens"),
        ({"logprobs": 21}, "logprobs is 21"),
        ({"grammar": {"rule": "regex", "text": "(a"}}, "grammar (regex) cannot be used"),
        ({"grammar": {"rule": "lark", "text": ""}}, "grammar (lark) is empty"),
        ({"grammar": {"rule": "json_schema", "text": '{"type": "foo"}'}}, "Invalid type: foo"),
        (
            {"grammar": {"rule": "json_schema", "text": "x" * 300_000}},
            "has 300000 characters; at most 131072",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    cluster4: str, fields: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        ask(cluster4, **fields)
    assert complaint in refused.value.details()
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
