"""Block heads as drafters: the tokens are those of transformers' generate, whatever the head proposes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from flowedge.core.pipeline_config import LAST_STAGE
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.loading import TargetModel, load_drafter
from tests.drafting.block_files import save_block_head
from tests.drafting.parallel_files import save_parallel_head
from tests.equality.conftest import finished, outputs_of, request, token_ids
from tests.equality.test_families import (
    PRECISIONS,
    PROMPT,
    SAMPLINGS,
    SPLITS,
    TOKENS,
    VOCAB,
    Model,
    make_model,
)
from tests.support.breadth import dealt_thinly

pytestmark = pytest.mark.slow
PARALLEL = "peagle"
KINDS = ("dflash", "jetspec", "dspark", "speculators-dflash", "dflash2", PARALLEL)


@dataclass(eq=False)
class Models:
    """A target, and the directory of a head of each kind."""

    target: Model
    heads: Path

    def drafter(self, kind: str, precision: str = "fp32", *others: str) -> Drafter:
        dtype, head = PRECISIONS[precision]["dtype"], self.target.head(precision)
        loaded = load_drafter(
            (str(self.heads / kind), *others), TargetModel(self.target.checkpoint, head, None, dtype)
        )
        assert loaded is not None
        return loaded


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    directory = tmp_path_factory.mktemp("blocks")
    target = make_model(directory / "target", "qwen3")
    hidden = int(target.checkpoint.config.hidden_size)
    for kind in KINDS:
        if kind != PARALLEL:
            passes = {"pass_depths": 2} if kind == "jetspec" else {}
            save_block_head(directory / kind, kind, hidden=hidden, vocab=VOCAB, **passes)
    save_parallel_head(directory / PARALLEL, hidden=hidden, vocab=VOCAB, draft_vocab=VOCAB // 2)
    return Models(target, directory)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("kind", "stages", "sampling", "strategy", "precision"),
    dealt_thinly(KINDS, list(SPLITS), list(SAMPLINGS), ["flowspec", "auto", "naive_pp"], list(PRECISIONS)),
)
def test_tokens_are_the_plain_models(
    models: Models, kind: str, stages: int, sampling: str, strategy: str, precision: str
) -> None:
    served = models.target.pipeline(precision, stages, models.drafter(kind, precision))
    outputs = served.generate(request(PROMPT, SAMPLINGS[sampling], TOKENS, strategy))
    assert token_ids(outputs) == models.target.plain(precision, sampling)
    assert finished(outputs).counters.draft_layers > 0


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["jetspec", "dflash2", PARALLEL])
def test_beside_lookup_where_the_last_stage_draws(models: Models, kind: str) -> None:
    drafter = models.drafter(kind, "fp32", "ngram")
    served = models.target.pipeline(drafter=drafter, verification=LAST_STAGE, keeps_taps=True)
    outputs = served.generate(request(PROMPT, SAMPLINGS["T1"], TOKENS, "auto"))
    assert token_ids(outputs) == models.target.plain("fp32", "T1")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["dspark", "dflash2", PARALLEL])
def test_sessions_side_by_side(models: Models, kind: str) -> None:
    served = models.target.pipeline(drafter=models.drafter(kind))
    for number, strategy in enumerate(("auto", "flowspec", "auto")):
        served.start(request(PROMPT, SAMPLINGS["T1"], TOKENS, strategy, session=f"s{number}"), 0.5 * number)
    served.run()
    for number in range(3):
        assert token_ids(outputs_of(served, f"s{number}")) == models.target.plain("fp32", "T1")
