"""Families of 2026: every strategy gives the tokens of transformers, whatever it drafts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from flowedge.core.pipeline_config import LAST_STAGE
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter
from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.lm_head import LMHead
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import virtual_pipeline
from flowedge.planning.virtual_pipeline import VirtualPipeline
from flowedge.strategies.registry import STRATEGIES
from tests.engine.histories import NoText
from tests.equality.conftest import finished, outputs_of, request, token_ids
from tests.equality.test_torch_histories import RandomDrafter
from tests.models.layer_pairs import tiny_config
from tests.models.tiny_families import randomise
from tests.support.breadth import dealt, thinnest

pytestmark = pytest.mark.slow
VOCAB = 5  # so small that many drafts of a random drafter are right
PROMPT, TOKENS = tuple(np.random.default_rng(8).integers(0, VOCAB, 40).tolist()), 24
SPLITS = {1: (4,), 3: (1, 2, 1)}
SAMPLINGS = {
    "T0": SamplingParams(),
    "T0.7": SamplingParams(temperature=0.7, seed=5),
    "T1": SamplingParams(temperature=1.0, top_p=0.9, seed=6),
}
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"dtype": torch.float32},
    "bf16": {"dtype": torch.bfloat16},
    "int8": {"dtype": torch.bfloat16, "quant": "int8"},
    "int4": {"dtype": torch.bfloat16, "quant": "int4"},
}
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64}
# Beside these, for all models of a kind and for one of them.
SIZES_OF: dict[str, dict[str, Any]] = {
    "lfm2": {"block_auto_adjust_ff_dim": False},
    "granitehybrid": {"shared_intermediate_size": 64},
    "gemma4": {"head_dim": 32, "global_head_dim": 64},
    "gemma4-small": {"hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": VOCAB},
    "gemma4-moe": {"moe_intermediate_size": 64},
}
PLAIN = "autoregressive"
OTHERS = tuple(name for name in STRATEGIES if name not in (PLAIN, "pipespec"))
TESTED = ("auto", "flowspec", "naive_pp")


@dataclass
class Model:
    """A small random model."""

    checkpoint: Checkpoint

    def __hash__(self) -> int:
        return id(self)

    @cache  # noqa: B019 (for the module)
    def blocks(self, precision: str, stages: int) -> list[LayerBlock]:
        cuts = np.cumsum([0, *SPLITS[stages]]).tolist()
        return [
            LayerBlock.load(self.checkpoint, start, stop, exact=True, **PRECISIONS[precision])
            for start, stop in pairwise(cuts)
        ]

    def pipeline(
        self, precision: str = "fp32", stages: int = 3, drafter: Drafter | None = None, **options: Any
    ) -> VirtualPipeline:
        blocks = self.blocks(precision, stages)
        assert all(block.exact for block in blocks), blocks[0].inexact_reason
        return virtual_pipeline(
            self.checkpoint,
            list(SPLITS[stages]),
            FixedCosts(),
            drafter=drafter or RandomDrafter(np.random.default_rng(3)),
            head=self.head(precision),
            make_text=NoText,
            blocks=blocks,
            **options,
        )

    @cache  # noqa: B019
    def head(self, precision: str) -> LMHead:
        return LMHead.load(self.checkpoint, PRECISIONS[precision]["dtype"], exact=True)

    @cache  # noqa: B019
    def plain(self, precision: str, sampling: str) -> tuple[int, ...]:
        """The answer of transformers' own generate in float32, of plain decoding in other precisions."""
        if precision == "fp32":
            reference = ReferenceModel.load(self.checkpoint)
            return tuple(reference.generate(PROMPT, SAMPLINGS[sampling], TOKENS, frozenset()).token_ids)
        alone = self.pipeline(precision, 1)
        return token_ids(alone.generate(request(PROMPT, SAMPLINGS[sampling], TOKENS, PLAIN)))


def make_model(directory: Path, name: str) -> Model:
    """Make a model of TINY, whose linear layers' inputs are multiples of what kernels quantise together."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = SIZES | SIZES_OF.get(name.partition("-")[0], {}) | SIZES_OF.get(name, {})
    made = AutoModelForCausalLM.from_config(tiny_config(name, vocab_size=VOCAB, **sizes))
    randomise(made)
    made.save_pretrained(directory)
    return Model(Checkpoint.open(str(directory)))


@pytest.fixture(
    scope="module",
    params=dealt(
        [
            "qwen3_5",
            "lfm2",
            "lfm2_moe",
            "gpt_oss",
            "granitehybrid",
            "granitehybrid-experts",
            "nemotron_h",
            "glm4_moe_lite",
            "gemma4",
            "gemma4-small",
            "gemma4-moe",
        ],
        {"qwen3_5", "lfm2_moe", "gpt_oss", "glm4_moe_lite", "gemma4-small"}.__contains__,
    ),
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Models with delta nets, short convolutions, sinks, state spaces, latent attention, shared keys."""
    return make_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("precision", "stages", "sampling", "strategy"),
    dealt(
        product(PRECISIONS, SPLITS, SAMPLINGS, OTHERS),
        thinnest(list(PRECISIONS), list(SPLITS), list(SAMPLINGS), TESTED).__contains__,
    ),
)
def test_every_strategy(model: Model, precision: str, stages: int, sampling: str, strategy: str) -> None:
    outputs = model.pipeline(precision, stages).generate(
        request(PROMPT, SAMPLINGS[sampling], TOKENS, strategy)
    )
    assert token_ids(outputs) == model.plain(precision, sampling)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("strategy", dealt(["auto", "flowspec"], {"auto"}.__contains__))
def test_where_the_last_stage_draws(model: Model, strategy: str) -> None:
    outputs = model.pipeline(verification=LAST_STAGE).generate(
        request(PROMPT, SAMPLINGS["T1"], TOKENS, strategy)
    )
    assert token_ids(outputs) == model.plain("fp32", "T1")


@pytest.mark.one_in(6)
@pytest.mark.parametrize("strategy", dealt([PLAIN, "auto", "flowspec"], {"auto"}.__contains__))
def test_a_chat_begins_with_the_rows_of_the_turn_before(model: Model, strategy: str) -> None:
    """The state is behind all rows of an ended session: a prompt that goes on from there reuses them."""
    reference, served = ReferenceModel.load(model.checkpoint), model.pipeline(kept_rows=10_000)
    prompt = PROMPT
    for turn in range(3):
        outputs = served.generate(request(prompt, SAMPLINGS["T1"], TOKENS, strategy, session=f"turn{turn}"))
        wanted = reference.generate(prompt, SAMPLINGS["T1"], TOKENS, frozenset()).token_ids
        assert token_ids(outputs) == tuple(wanted)
        reused = finished(outputs).counters.reused_rows
        assert reused == 0 if turn == 0 else reused >= len(prompt) - 12, reused
        prompt = (*prompt, *wanted, *PROMPT[:9])


@pytest.mark.one_in(6)
def test_a_prompt_that_turns_off_earlier_is_computed_where_states_cannot(model: Model) -> None:
    served = model.pipeline(kept_rows=10_000)
    for name, prompt in (("a", PROMPT), ("b", (*PROMPT[:30], 1, 2, 3)), ("c", PROMPT)):
        outputs = served.generate(request(prompt, SAMPLINGS["T0"], TOKENS, "auto", session=name))
        wanted = ReferenceModel.load(model.checkpoint).generate(prompt, SAMPLINGS["T0"], TOKENS, frozenset())
        assert token_ids(outputs) == tuple(wanted.token_ids)
        reused = finished(outputs).counters.reused_rows
        has_states = model.checkpoint.architecture.recurrence is not None
        assert reused == 0 if has_states or name == "a" else reused >= 16


@pytest.mark.one_in(3)
def test_sessions_side_by_side(model: Model) -> None:
    served = model.pipeline()
    for number in range(4):
        served.start(
            request(PROMPT, SAMPLINGS["T1"], TOKENS, ("auto", PLAIN)[number % 2], session=f"s{number}"),
            0.5 * number,
        )
    served.run()
    for number in range(4):
        assert token_ids(outputs_of(served, f"s{number}")) == model.plain("fp32", "T1")
