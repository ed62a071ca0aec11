"""Token-for-token equality with the plain model under the same rules, by transformers' own generate."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from flowedge.core.errors import GrammarError
from flowedge.core.grammar import GrammarSource
from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE
from flowedge.core.request import Failed, Finished, Request, Tokens
from flowedge.core.sampling import LogitRules, SamplingParams, TokenLikelihood
from flowedge.drafting.drafter import Drafter
from flowedge.engine.jobs import DraftBatch, DraftJob, StageJob, Verify
from flowedge.planning.virtual_pipeline import TimedOutput, VirtualObserver
from flowedge.strategies.registry import STRATEGIES
from tests.engine.histories import express_fault
from tests.equality.conftest import (
    Pair,
    drafter_of,
    expected,
    faulty,
    finished,
    outputs_of,
    reference,
    restless_pipeline,
    text_of,
    token_ids,
)
from tests.equality.test_mixed_sessions import check_answers, run_together
from tests.support.breadth import dealt, dealt_thinly, diagonal, thinnest
from tests.support.mixed_sessions import mixed_sessions
from tests.support.ruled_reference import llguidance_matcher, ruled_answer
from tests.support.seams import share_measurements

pytestmark = pytest.mark.slow
EOS = frozenset({1})
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "eggs_a_week": {"type": "integer", "minimum": 0, "maximum": 999},
        "kind": {"enum": ["hen", "goose"]},
        "steps": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "eggs_a_week", "kind", "steps"],
    "additionalProperties": False,
}
JSON_SCHEMA = GrammarSource("json_schema", json.dumps(SCHEMA))
REGEX = GrammarSource("regex", r"The farmer (earns|has) \d{1,4} (dollars|eggs)\.( That is \w{1,9}\.){1,2}")
LARK = GrammarSource("lark", 'start: "eggs: " NUMBER ("," NUMBER){2,5} "."\nNUMBER: /[0-9]{1,3}/')
RULES = {
    "penalties": LogitRules(presence_penalty=0.9, frequency_penalty=0.6),
    "reward": LogitRules(presence_penalty=-0.4, frequency_penalty=-0.2),
    "bias": LogitRules(logit_bias=((5, 3.0), (20, -100.0), (300, 4.0)), logprobs=0),
    "object": LogitRules(grammar=GrammarSource("json_object")),
    "schema": LogitRules(grammar=JSON_SCHEMA, logprobs=4),
    "regex": LogitRules(grammar=REGEX, frequency_penalty=1.0),
    "lark": LogitRules(grammar=LARK, logit_bias=((5, 2.0),)),
    "late": LogitRules(grammar=replace(LARK, ends_late=True)),
    "all": LogitRules(1.1, 0.4, ((5, 2.0), (77, -3.0)), 2, JSON_SCHEMA),
}
SAMPLINGS = {
    "greedy": SamplingParams(),
    "T1": SamplingParams(temperature=1.0, seed=7),
    "T0.8-k30-p0.9": SamplingParams(temperature=0.8, top_k=30, top_p=0.9, seed=8),
}
TOKENS = 32


@cache
def ruled(
    pair: Pair, prompt: tuple[int, ...], sampling: SamplingParams, count: int, rules: LogitRules
) -> tuple[tuple[int, ...], list[np.ndarray]]:
    grammar = None if rules.grammar is None else llguidance_matcher(pair.tokenizer, rules.grammar, EOS)
    return ruled_answer(reference("none"), prompt, sampling, count, rules, grammar, EOS)


def asked(
    prompt: tuple[int, ...], sampling: SamplingParams, strategy: str, rules: LogitRules, count: int = TOKENS
) -> Request:
    return Request("s", prompt, sampling, count, EOS, strategy=strategy, rules=rules)


def likelihoods(outputs: Sequence[TimedOutput]) -> list[TokenLikelihood]:
    found: list[TokenLikelihood] = []
    for timed in outputs:
        if isinstance(timed.output, Tokens):
            assert [each.token for each in timed.output.likelihoods] == list(timed.output.token_ids)
            found += timed.output.likelihoods
    return found


TESTED = thinnest(("auto", "flowspec", "pipeinfer"), list(RULES), list(SAMPLINGS))
PAIRS = diagonal(list(STRATEGIES), list(RULES), list(SAMPLINGS), one_in=2)  # every strategy under every rule


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("strategy", "rules_name", "sampling_name"),
    dealt(sorted({*TESTED, *PAIRS}), TESTED.__contains__),
)
def test_every_strategy(pair: Pair, strategy: str, rules_name: str, sampling_name: str) -> None:
    prompt, sampling, rules = pair.prompt(90), SAMPLINGS[sampling_name], RULES[rules_name]
    outputs = pair.pipeline([2, 2, 4]).generate(asked(prompt, sampling, strategy, rules))
    assert token_ids(outputs) == ruled(pair, prompt, sampling, TOKENS, rules)[0]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("strategy", "rules_name"),
    dealt_thinly(["auto", "flowspec", "autoregressive"], ["schema", "penalties", "all"]),
)
def test_beside_a_last_stage_that_draws(pair: Pair, strategy: str, rules_name: str) -> None:
    """A session with rules is drawn on the draft node, with a drafter whose taps the stages keep."""
    prompt, sampling, rules = pair.prompt(90), SAMPLINGS["T1"], RULES[rules_name]
    drafter = drafter_of(pair, "bundled-eagle3")
    pipeline = pair.pipeline([3, 5], drafter=drafter, verification=LAST_STAGE, keeps_taps=True)
    outputs = pipeline.generate(asked(prompt, sampling, strategy, rules, 24))
    assert token_ids(outputs) == ruled(pair, prompt, sampling, 24, rules)[0]
    assert finished(outputs).verification == DRAFT_NODE
    without = replace(asked(prompt, sampling, strategy, rules, 24), session="t", eos=frozenset(), rules=None)
    outputs = pipeline.generate(without)
    assert token_ids(outputs) == expected(prompt, sampling, 24, "none")
    assert finished(outputs).verification == LAST_STAGE


@pytest.mark.parametrize(
    "names",
    ["bundled-small", "ngram", "bundled+bundled-small", "bundled+ngram", "bundled-eagle3"],
)
@pytest.mark.parametrize(
    ("strategy", "sampling_name"),
    dealt(product(["auto", "flowspec"], ["T1", "greedy"]), ("flowspec", "T1").__eq__),
)
def test_every_drafter(pair: Pair, names: str, strategy: str, sampling_name: str) -> None:
    own = replace(pair, drafter=drafter_of(pair, names))
    prompt, sampling, rules = pair.prompt(90), SAMPLINGS[sampling_name], RULES["schema"]
    outputs = own.pipeline([3, 5]).generate(asked(prompt, sampling, strategy, rules))
    assert token_ids(outputs) == ruled(pair, prompt, sampling, TOKENS, rules)[0]
    assert finished(outputs).counters.forced_tokens > 10


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(3))
def test_sessions_with_different_rules_share_a_pipeline(pair: Pair, seed: int) -> None:
    """Random histories in which about two of three sessions have rules; some begin with rows of others."""
    rng = np.random.default_rng(seed)
    batches: list[DraftBatch] = []

    class Watching(VirtualObserver):
        def computed(self, place: int, job: StageJob | DraftJob, start: float, end: float) -> None:
            if isinstance(job, DraftBatch) and job.verifies:
                batches.append(job)

    pipeline = pair.pipeline(
        [2, 2, 4],
        express_fault=express_fault(rng),
        observer=Watching(),
        verification=LAST_STAGE if seed % 2 else DRAFT_NODE,
        kept_rows=600,
    )
    sessions = mixed_sessions(rng, pair.prompt, 20, 4.0)
    rules = [None, *RULES.values()]
    for index, session in enumerate(sessions):
        own = rules[int(rng.integers(0, len(rules)))] if index % 3 else None
        if own is not None:
            sessions[index] = replace(session, request=replace(session.request, rules=own, eos=EOS))

    def alone(request: Request) -> tuple[int, ...]:
        prompt, sampling, count = request.prompt, request.sampling, request.max_new_tokens
        if request.rules is None:
            return expected(prompt, sampling, count, "none")
        return ruled(pair, prompt, sampling, count, request.rules)[0]

    run_together(pipeline, sessions)
    check_answers(pipeline, sessions, alone, kept_rows=600)
    for session in sessions:
        pair.drafter.close(session.request.session)
    together = [{job.path for job in batch.jobs if isinstance(job, Verify)} for batch in batches]
    assert any(len(paths) > 1 for paths in together), "no batch has verified sessions with different rules"


@pytest.mark.proof
def test_batches_that_fail_for_memory_are_verified_one_by_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowedge.engine.executors import head_executor

    walk_together, failed = head_executor.walk_together, []

    def short_of_memory(head, trees):
        walks = walk_together(head, trees)  # the rules have followed the walks already
        if len(trees) > 1:
            failed.append(len(trees))
            raise torch.OutOfMemoryError("no memory")
        return walks

    monkeypatch.setattr(head_executor, "walk_together", short_of_memory)
    pipeline, rules = pair.pipeline([3, 5]), RULES["all"]
    requests = [
        replace(asked(pair.prompt(60), SamplingParams(1.0, seed=seed), "auto", rules, 16), session=f"s{seed}")
        for seed in range(3)
    ]
    for request in requests:
        pipeline.start(request, 0.0)
    pipeline.run()
    assert failed
    for request in requests:
        own = outputs_of(pipeline, request.session)
        assert token_ids(own) == ruled(pair, request.prompt, request.sampling, 16, rules)[0]


@pytest.mark.parametrize("sampling_name", dealt(SAMPLINGS, "greedy".__eq__))
def test_answers_satisfy_the_schema(pair: Pair, sampling_name: str) -> None:
    sampling, rules = SAMPLINGS[sampling_name], LogitRules(grammar=JSON_SCHEMA)
    outputs = pair.pipeline([2, 2, 4]).generate(asked(pair.prompt(90), sampling, "auto", rules, 120))
    assert finished(outputs).reason == "eos"
    answer = json.loads(text_of(outputs))
    assert list(answer) == ["name", "eggs_a_week", "kind", "steps"]
    assert isinstance(answer["name"], str)
    assert len(answer["name"]) <= 12
    assert 0 <= answer["eggs_a_week"] <= 999
    assert answer["kind"] in ("hen", "goose")
    assert 1 <= len(answer["steps"]) <= 3
    assert all(isinstance(step, str) and len(step) <= 8 for step in answer["steps"])


def test_the_answer_matches_the_regex_and_ends_with_the_grammar(pair: Pair) -> None:
    rules = LogitRules(grammar=REGEX)
    outputs = pair.pipeline([3, 5]).generate(asked(pair.prompt(90), SAMPLINGS["T1"], "auto", rules, 120))
    assert re.fullmatch(REGEX.text, text_of(outputs))
    assert finished(outputs).reason == "eos"


def test_an_answer_that_may_not_end_early_goes_on_to_the_end_of_the_grammar(pair: Pair) -> None:
    """With ignore_eos, an end that the grammar merely allows is not drawn."""
    text = r"yes( yes){0,6}"
    late, early = (
        pair.pipeline([3, 5]).generate(
            asked(pair.prompt(90), SAMPLINGS["T1"], "auto", LogitRules(grammar=source), 40)
        )
        for source in (GrammarSource("regex", text, ends_late=True), GrammarSource("regex", text))
    )
    assert pair.tokenizer.decode(token_ids(late)[:-1]).split() == ["yes"] * 7
    assert len(token_ids(early)) <= len(token_ids(late))
    assert finished(late).reason == "eos"


@pytest.mark.parametrize("strategy", ["auto", "flowspec", "autoregressive"])
def test_the_limit_of_tokens_cuts_a_grammar(pair: Pair, strategy: str) -> None:
    rules = LogitRules(grammar=JSON_SCHEMA)
    outputs = pair.pipeline([3, 5]).generate(asked(pair.prompt(90), SamplingParams(), strategy, rules, 7))
    assert finished(outputs).reason == "length"
    assert token_ids(outputs) == ruled(pair, pair.prompt(90), SamplingParams(), 7, rules)[0]


def test_a_stop_string_ends_an_answer_with_a_grammar(pair: Pair) -> None:
    request = replace(asked(pair.prompt(90), SamplingParams(), "auto", RULES["schema"]), stop=("eggs_a",))
    outputs = pair.pipeline([3, 5]).generate(request)
    assert finished(outputs).reason == "stop"
    assert text_of(outputs).endswith('"')


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("strategy", "rules_name"), dealt_thinly(["auto", "autoregressive"], ["schema", "all"])
)
def test_logprobs_are_those_of_the_model_alone(pair: Pair, strategy: str, rules_name: str) -> None:
    prompt, sampling, rules = pair.prompt(90), SAMPLINGS["T0.8-k30-p0.9"], RULES[rules_name]
    outputs = pair.pipeline([2, 2, 4]).generate(asked(prompt, sampling, strategy, rules))
    tokens, raw = ruled(pair, prompt, sampling, TOKENS, rules)
    found = likelihoods(outputs)
    assert tuple(each.token for each in found) == tokens
    for each, logits in zip(found, raw, strict=True):
        exact = torch.log_softmax(torch.from_numpy(logits).double(), dim=-1).numpy()
        assert each.logprob == pytest.approx(exact[each.token], abs=1e-4)
        best = np.argsort(-exact, kind="stable")[: rules.logprobs]
        assert [token for token, _ in each.likeliest] == best.tolist()
        assert [value for _, value in each.likeliest] == pytest.approx(exact[best].tolist(), abs=1e-4)


def test_logprobs_alone_change_no_token(pair: Pair) -> None:
    sampling = SAMPLINGS["T0.8-k30-p0.9"]
    request = replace(asked(pair.prompt(90), sampling, "auto", LogitRules(logprobs=1), 16), eos=frozenset())
    outputs = pair.pipeline([2, 2, 4]).generate(request)
    assert token_ids(outputs) == expected(pair.prompt(90), sampling, 16, "none")
    assert len(likelihoods(outputs)) == 16
    assert finished(outputs).counters.forced_tokens == 0


class Forwards:
    """A Drafter that counts the forwards it is asked for."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.count = 0

    def __getattr__(self, name: str):
        return getattr(self._drafter, name)

    def grow(self, requests):
        self.count += any(request.frontier.nodes for request in requests)
        return self._drafter.grow(requests)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rules_name", ["schema", "regex", "all"])
def test_lookup_alone_and_all_drafters_in_turns(pair: Pair, rules_name: str) -> None:
    own = replace(pair, drafter=drafter_of(pair, "bundled+ngram"))
    prompt, sampling, rules = pair.prompt(90), SAMPLINGS["greedy"], RULES[rules_name]
    pipeline = own.pipeline([3, 5])
    share_measurements(pipeline.draft_node, restless_pipeline())
    outputs = pipeline.generate(asked(prompt, sampling, "auto", rules))
    assert token_ids(outputs) == ruled(pair, prompt, sampling, TOKENS, rules)[0]


@pytest.mark.parametrize("names", ["bundled", "bundled-small"])
def test_forced_tokens_are_drafted_without_forwards(pair: Pair, names: str) -> None:
    """Of a text that is forced from its first to its last token, the drafter computes next to nothing."""
    fixed = "Eggs are laid by hens; hens are kept by farmers, who sell them."
    rules = LogitRules(grammar=GrammarSource("regex", re.escape(fixed)))
    counts = {}
    for name, own in {"forced": rules, "free": None}.items():
        drafter = Forwards(drafter_of(pair, names))
        request = replace(asked(pair.prompt(60), SamplingParams(), "flowspec", rules, 40), rules=own)
        outputs = replace(pair, drafter=drafter).pipeline([3, 5]).generate(request)  # type: ignore[arg-type]
        counts[name] = drafter.count / len(token_ids(outputs))
        if own is not None:
            assert text_of(outputs) == fixed
            assert finished(outputs).counters.forced_tokens >= len(token_ids(outputs)) - 2
    assert counts["forced"] < counts["free"] / 10, counts


def test_a_grammar_that_cannot_be_compiled_ends_the_session_alone(pair: Pair) -> None:
    pipeline = pair.pipeline([3, 5])
    bad = asked(pair.prompt(40), SamplingParams(), "auto", LogitRules(grammar=GrammarSource("regex", "(a")))
    good = replace(asked(pair.prompt(40), SamplingParams(), "auto", RULES["all"]), session="good")
    pipeline.start(bad, 0.0)
    pipeline.start(good, 0.0)
    pipeline.run()
    ends = {t.output.session: t.output for t in pipeline.outputs}
    failed = ends["s"]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, GrammarError)
    assert "grammar (regex) cannot be used" in str(failed.error)
    assert isinstance(ends["good"], Finished)


@pytest.mark.parametrize("strategy", dealt(["auto", "flowspec", "specpipe_db"], "flowspec".__eq__))
def test_random_faults_change_no_token(pair: Pair, strategy: str) -> None:
    prompt, sampling, rules = pair.prompt(90), SAMPLINGS["T1"], RULES["all"]
    pipeline = pair.pipeline([2, 2, 4], express_fault=faulty(3, 0.3))
    outputs = pipeline.generate(asked(prompt, sampling, strategy, rules))
    assert token_ids(outputs) == ruled(pair, prompt, sampling, TOKENS, rules)[0]
