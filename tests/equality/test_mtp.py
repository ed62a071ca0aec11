"""Models that draft by the layer that comes with them: the tokens are those of transformers' generate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest
import torch

from flowedge.core.pipeline_config import LAST_STAGE
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.lm_head import LMHead
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import virtual_pipeline
from flowedge.planning.virtual_pipeline import VirtualPipeline
from tests.drafting.mtp_files import make_mtp
from tests.engine.histories import NoText
from tests.equality.conftest import finished, outputs_of, request, token_ids
from tests.support.breadth import dealt, dealt_diagonally

pytestmark = pytest.mark.slow
VOCAB = 5  # so small that many drafts of a random layer are right
PROMPT, TOKENS = tuple(np.random.default_rng(8).integers(0, VOCAB, 30).tolist()), 24
FAMILIES = ("qwen3_5", "qwen3_5_moe", "qwen3_next", "glm4_moe_lite")
SPLITS = {1: (4,), 3: (1, 2, 1)}
SAMPLINGS = {
    "T0": SamplingParams(),
    "T0.7": SamplingParams(temperature=0.7, seed=5),
    "T1": SamplingParams(temperature=1.0, top_p=0.9, seed=6),
}


@dataclass(eq=False)
class Model:
    checkpoint: Checkpoint

    @cached_property
    def head(self) -> LMHead:
        return LMHead.load(self.checkpoint)

    @cached_property
    def reference(self) -> ReferenceModel:
        return ReferenceModel.load(self.checkpoint)

    def drafter(self, *others: str) -> Drafter:
        drafter = load_drafter(("mtp", *others), TargetModel(self.checkpoint, self.head, None, torch.float32))
        assert drafter is not None
        return drafter

    def pipeline(self, stages: int, *others: str, **options: Any) -> VirtualPipeline:
        return virtual_pipeline(
            self.checkpoint,
            list(SPLITS[stages]),
            FixedCosts(),
            drafter=self.drafter(*others),
            head=self.head,
            make_text=NoText,
            **options,
        )

    @cache  # noqa: B019 (for the module)
    def plain(self, sampling: str, prompt: tuple[int, ...] = PROMPT) -> tuple[int, ...]:
        generated = self.reference.generate(prompt, SAMPLINGS[sampling], TOKENS, frozenset())
        return tuple(generated.token_ids)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    torch.set_num_threads(1)

    @cache
    def make(family: str) -> Model:
        return Model(Checkpoint(make_mtp(tmp_path_factory.mktemp(family), family, vocab_size=VOCAB)))

    return make


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("family", "stages", "sampling", "strategy"),
    dealt_diagonally(FAMILIES, list(SPLITS), list(SAMPLINGS), ["flowspec", "auto"], one_in=4),
)
def test_tokens_are_the_plain_models(
    models: Callable[[str], Model], family: str, stages: int, sampling: str, strategy: str
) -> None:
    model = models(family)
    outputs = model.pipeline(stages).generate(request(PROMPT, SAMPLINGS[sampling], TOKENS, strategy))
    assert token_ids(outputs) == model.plain(sampling)
    assert finished(outputs).counters.draft_layers > 0


def test_where_the_last_stage_draws(models: Callable[[str], Model]) -> None:
    model = models("qwen3_5")
    outputs = model.pipeline(3, "ngram", verification=LAST_STAGE).generate(
        request(PROMPT, SAMPLINGS["T1"], TOKENS, "flowspec")
    )
    assert token_ids(outputs) == model.plain("T1")


@pytest.mark.parametrize("family", dealt(FAMILIES, "qwen3_5_moe".__eq__))
def test_a_chat_goes_on_from_the_rows_of_the_turn_before(models: Callable[[str], Model], family: str) -> None:
    """The layer's own cache goes on from the rows that the target's states are behind.

    An answer ends in the middle of an accepted path: no state may be behind the rows that are left out.
    """
    model = models(family)
    served, prompt = model.pipeline(3, kept_rows=10_000), PROMPT
    for turn in range(3):
        outputs = served.generate(request(prompt, SAMPLINGS["T1"], TOKENS, "flowspec", session=f"t{turn}"))
        assert token_ids(outputs) == model.plain("T1", prompt)
        reused = finished(outputs).counters.reused_rows
        assert reused == 0 if turn == 0 else reused >= len(prompt) - 12, reused
        prompt = (*prompt, *model.plain("T1", prompt), *PROMPT[:9])


@pytest.mark.parametrize("family", dealt(FAMILIES, "qwen3_next".__eq__))
def test_sessions_side_by_side(models: Callable[[str], Model], family: str) -> None:
    model = models(family)
    served = model.pipeline(3)
    for number, strategy in enumerate(("auto", "flowspec", "auto")):
        served.start(request(PROMPT, SAMPLINGS["T1"], TOKENS, strategy, session=f"s{number}"), 0.5 * number)
    served.run()
    for number in range(3):
        assert token_ids(outputs_of(served, f"s{number}")) == model.plain("T1")
