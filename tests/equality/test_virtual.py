"""Token-for-token equality with the plain model, on the virtual driver and the bundled pair."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE, VerificationPlace
from flowedge.core.request import Failed
from flowedge.core.sampling import SamplingParams
from flowedge.engine.jobs import ForwardBatch
from flowedge.models.check.judging import Tolerance
from flowedge.planning.virtual_pipeline import VirtualObserver
from flowedge.strategies.registry import STRATEGIES
from tests.equality.conftest import (
    Pair,
    drafter_of,
    expected,
    faulty,
    finished,
    outputs_of,
    reference,
    request,
    text_of,
    token_ids,
)
from tests.support.breadth import dealt, dealt_thinly

pytestmark = pytest.mark.slow
SPLITS = {1: [8], 2: [3, 5], 3: [2, 2, 4], 4: [2, 2, 2, 2], 8: [1] * 8}
SAMPLINGS = {
    "greedy": SamplingParams(),
    "T0.7": SamplingParams(temperature=0.7, seed=11),
    "T0.7-k20": SamplingParams(temperature=0.7, top_k=20, seed=12),
    "T1-p0.9": SamplingParams(temperature=1.0, top_p=0.9, seed=13),
    "T1-k40-p0.95": SamplingParams(temperature=1.0, top_k=40, top_p=0.95, seed=2**62 + 1),
}


# The full matrix is run on our own strategies. The baselines differ from them in policy alone, so for them
# every number of stages and every sampling is met, but not every pair.
OWN = ("autoregressive", "flowspec", "auto")
HIERARCHIES = ("pipespec", "pipespec_sync")  # which tests/equality/test_pipespec.py is about
BASELINES = tuple(name for name in STRATEGIES if name not in (*OWN, *HIERARCHIES))
PAIRS = [(1, "greedy"), (2, "T0.7-k20"), (3, "T0.7"), (4, "greedy"), (4, "T1-p0.9"), (8, "T1-k40-p0.95")]
MATRIX = [
    *dealt_thinly(OWN, list(SPLITS), list(SAMPLINGS)),
    *dealt_thinly(BASELINES, PAIRS),
]
LENGTHS = [
    *dealt_thinly(OWN, (1, 2, 3, 127, 128, 129, 600, 1500)),
    *dealt(product(BASELINES, (1, 129)), lambda _case: False),
]
TWO_SAMPLINGS = ("greedy", "T1-p0.9")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("strategy", "stages", "sampling_name"), MATRIX)
def test_strategies_stages_and_sampling(pair: Pair, strategy: str, stages: int, sampling_name: str) -> None:
    prompt, sampling = pair.prompt(40), SAMPLINGS[sampling_name]
    outputs = pair.pipeline(SPLITS[stages]).generate(request(prompt, sampling, 16, strategy))
    assert token_ids(outputs) == expected(prompt, sampling, 16, "none")


@pytest.mark.parametrize(
    ("options", "sampling_name"),
    [
        ({"width": 8, "step_levels": 2}, "greedy"),
        ({"width": 4, "step_levels": 3, "mini_batches": 2, "groups": 2}, "T1-p0.9"),
    ],
)
def test_variations_of_specpipes_steps(pair: Pair, options: dict[str, float], sampling_name: str) -> None:
    prompt, sampling = pair.prompt(40), SAMPLINGS[sampling_name]
    asked = replace(request(prompt, sampling, 16, "specpipe"), strategy_options=options)
    assert token_ids(pair.pipeline(SPLITS[4]).generate(asked)) == expected(prompt, sampling, 16, "none")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("strategy", "length"), LENGTHS)
def test_prompt_lengths(pair: Pair, strategy: str, length: int) -> None:
    sampling = SamplingParams(temperature=1.0, seed=length)
    prompt = pair.prompt(length)
    assert len(prompt) == length
    outputs = pair.pipeline([2, 2, 2, 2]).generate(request(prompt, sampling, 8, strategy))
    assert token_ids(outputs) == expected(prompt, sampling, 8, "none")


@pytest.mark.parametrize(
    ("names", "sampling_name"),
    dealt_thinly(("bundled-small", "bundled+bundled-small", "bundled-eagle3"), TWO_SAMPLINGS),
)
def test_the_other_bundled_drafters(pair: Pair, names: str, sampling_name: str) -> None:
    prompt, sampling = pair.prompt(40), SAMPLINGS[sampling_name]
    pipeline = pair.pipeline([3, 5], drafter=drafter_of(pair, names))
    outputs = pipeline.generate(request(prompt, sampling, 16, "flowspec"))
    assert token_ids(outputs) == expected(prompt, sampling, 16, "none")
    assert max(finished(outputs).counters.accepted_per_round) > 1, "nothing that it drafts is right"


@pytest.mark.proof
@pytest.mark.parametrize(
    ("quant", "strategy", "sampling_name"), dealt_thinly(("nf4", "fp4"), OWN, TWO_SAMPLINGS)
)
def test_four_bit(pair: Pair, quant: str, strategy: str, sampling_name: str) -> None:
    prompt, sampling = pair.prompt(40), SAMPLINGS[sampling_name]
    outputs = pair.pipeline([3, 5], quant).generate(request(prompt, sampling, 20, strategy))
    assert token_ids(outputs) == expected(prompt, sampling, 20, quant)


@pytest.fixture(scope="module")
def int8_tolerance(pair: Pair) -> Tolerance:
    return reference("int8").measure_tolerance(pair.prompt(256))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("strategy", "sampling_name"), dealt_thinly(OWN, TWO_SAMPLINGS))
def test_eight_bit_up_to_measured_ties(
    pair: Pair, int8_tolerance: Tolerance, strategy: str, sampling_name: str
) -> None:
    prompt, sampling = pair.prompt(40), SAMPLINGS[sampling_name]
    outputs = pair.pipeline([3, 5], "int8").generate(request(prompt, sampling, 20, strategy))
    judgement = reference("int8").judge(prompt, token_ids(outputs), sampling, int8_tolerance.value)
    assert judgement.passed, judgement
    assert judgement.checked == 20


def cut(_stage: int, _message: object) -> None:
    return None


def late(_stage: int, _message: object) -> float:
    return 5.0


FAULTS = {"cut": cut, "late": late, **{f"mixed{seed}": faulty(seed, 0.2) for seed in (1, 2, 3)}}
BASELINE_FAULTS = product(["mixed3"], BASELINES, ["T1-p0.9"])


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("fault", "strategy", "sampling_name"),
    [
        *dealt_thinly(["cut", "late", "mixed1", "mixed2"], ("auto", "flowspec"), TWO_SAMPLINGS),
        *dealt(BASELINE_FAULTS, lambda case: case[1] in ("naive_pp", "specpipe_db")),
    ],
)
def test_express_lane_faults(pair: Pair, fault: str, strategy: str, sampling_name: str) -> None:
    prompt, sampling = pair.prompt(40), SAMPLINGS[sampling_name]
    pipeline = pair.pipeline([2, 2, 2, 2], express_fault=FAULTS[fault])
    outputs = pipeline.generate(request(prompt, sampling, 20, strategy))
    assert token_ids(outputs) == expected(prompt, sampling, 20, "none")


class Together(VirtualObserver):
    """Counts the forwards of stages that have rows of several sessions, by the number of sessions."""

    def __init__(self) -> None:
        self.forwards: Counter[int] = Counter()

    def computed(self, place: int, job: object, start: float, end: float) -> None:
        if isinstance(job, ForwardBatch) and len(job.forwards) > 1:
            self.forwards[len(job.forwards)] += 1


@pytest.mark.proof
@pytest.mark.parametrize(
    ("sessions", "verification"),
    dealt([(1, DRAFT_NODE), (3, LAST_STAGE), (6, DRAFT_NODE)], (6, DRAFT_NODE).__eq__),
)
def test_sessions_that_step_together_beside_others(
    pair: Pair, sessions: int, verification: VerificationPlace
) -> None:
    together = Together()
    pipeline = pair.pipeline([2, 2, 2, 2], observer=together, verification=verification)
    wanted = {}
    for i in range(sessions):
        strategy = ["specpipe_db", "specpipe_db", "auto", "specpipe_db", "naive_pp", "specpipe"][i]
        prompt, sampling = pair.prompt(30 + i), SamplingParams(temperature=float(i % 2), seed=i)
        pipeline.start(request(prompt, sampling, 16, strategy, session=f"s{i}"), time=0.05 * i)
        wanted[f"s{i}"] = expected(prompt, sampling, 16, "none")
    if sessions == 6:
        leaving = request(pair.prompt(40), SamplingParams(), 64, "specpipe_db", session="leaving")
        pipeline.start(leaving)
        pipeline.cancel("leaving", 1.5)
    pipeline.run()
    for session, tokens in wanted.items():
        assert token_ids(outputs_of(pipeline, session)) == tokens
    assert bool(together.forwards) == (sessions > 1), "levels of several sessions are computed in one forward"


def test_a_run_repeats_exactly(pair: Pair) -> None:
    prompt, sampling = pair.prompt(40), SAMPLINGS["T1-p0.9"]
    runs = [pair.pipeline([3, 5]).generate(request(prompt, sampling, 12, "auto")) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("first", dealt((0, 3, 6), lambda first: first == 0))
def test_end_of_sequence_wherever_it_falls(pair: Pair, first: int) -> None:
    """Tokens of an output in turn are declared the end; what comes out stops right after the end."""
    prompt, sampling = pair.prompt(40), SAMPLINGS["T1-p0.9"]
    tokens = expected(prompt, sampling, 24, "none")
    pipeline = pair.pipeline([2, 2, 2, 2])
    for i in range(first, 24, 9):
        eos = frozenset([tokens[i]])
        session = request(prompt, sampling, 24, "auto", session=f"eos{i}")
        outputs = pipeline.generate(replace(session, eos=eos))
        assert token_ids(outputs) == tokens[: tokens.index(tokens[i]) + 1]
        assert finished(outputs).reason == "eos"


@pytest.mark.parametrize(("strategy", "count"), dealt_thinly(list(STRATEGIES), (1, 2, 3, 7)))
def test_token_limit(pair: Pair, strategy: str, count: int) -> None:
    prompt, sampling = pair.prompt(40), SamplingParams()
    outputs = pair.pipeline([3, 5]).generate(request(prompt, sampling, count, strategy))
    assert token_ids(outputs) == expected(prompt, sampling, 16, "none")[:count]


def test_stop_string_across_token_borders(pair: Pair) -> None:
    prompt = pair.prompt(40)
    pipeline = pair.pipeline([3, 5])
    plain = request(prompt, SamplingParams(), 24, "auto", session="plain")
    text = text_of(pipeline.generate(plain))
    stop = text[len(text) // 2 - 2 : len(text) // 2 + 3]
    stopped = pipeline.generate(replace(plain, session="stop", stop=(stop,)))
    assert text_of(stopped) == text[: text.index(stop)]
    assert finished(stopped).reason == "stop"
    assert not any(isinstance(timed.output, Failed) for timed in stopped)
