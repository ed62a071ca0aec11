"""Token-for-token equality with the plain model, for every drafter, on a small random model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from flowedge.core.request import Finished, Request
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.draft_vocabulary import ENOUGH_TOKENS, DraftVocabulary, VocabularyLearner
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.joined import JoinedDrafter
from flowedge.drafting.lm import LMDrafter
from flowedge.drafting.lookup.answer_store import AnswerStore
from flowedge.drafting.lookup.ngram import NGramDrafter
from flowedge.drafting.model_drafter import ModelDrafter
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.drafting.token_counts import CountsFile, TokenCounts
from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead, load_embedding
from flowedge.models.quant.quantize import quantize_block
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import load_blocks, virtual_pipeline
from flowedge.strategies.auto.measured import MeasuredPipeline
from flowedge.strategies.registry import STRATEGIES
from tests.engine.histories import NoText
from tests.equality.conftest import SMALL_PROMPT as PROMPT
from tests.equality.conftest import SMALL_VOCAB as VOCAB
from tests.equality.conftest import finished, random_config, restless_pipeline, token_ids
from tests.support.breadth import dealt, dealt_thinly, thinnest
from tests.support.seams import share_measurements

pytestmark = pytest.mark.slow
SPLIT = [1, 2]
TOKENS = 28
SAMPLINGS = (SamplingParams(), SamplingParams(temperature=1.0, seed=5))
CONFIG = random_config(3, 0.35)


@dataclass
class Models:
    """A target, and a copy of it that knows a little less."""

    checkpoint: Checkpoint
    noisy: Checkpoint

    @cached_property
    def head(self) -> LMHead:
        return LMHead.load(self.checkpoint)

    @cached_property
    def blocks(self) -> list[LayerBlock]:
        return load_blocks(self.checkpoint, SPLIT)

    @cached_property
    def reference(self) -> ReferenceModel:
        return ReferenceModel.load(self.checkpoint)

    @cached_property
    def expected(self) -> list[list[int]]:
        return [
            self.reference.generate(PROMPT, sampling, TOKENS, frozenset()).token_ids for sampling in SAMPLINGS
        ]

    def lm(
        self, checkpoint: Checkpoint, part: DraftVocabulary | None = None, quant: str = "none"
    ) -> LMDrafter:
        block, head = LayerBlock.load(checkpoint, 0, 3, quant=quant), LMHead.load(checkpoint)
        return LMDrafter(LanguageModel(block, head, VOCAB, ""), ProposalHead(head, part, quant))

    def eagle(
        self, recalls: bool = False, part: DraftVocabulary | None = None, quant: str = "none"
    ) -> HeadDrafter:
        torch.manual_seed(1)
        head = EagleHead(LlamaConfig(**{**CONFIG.to_dict(), "num_hidden_layers": 1}), fc_bias=True).eval()
        quantize_block(head.requires_grad_(False), quant)
        embedding: nn.Embedding = load_embedding(self.checkpoint)
        proposals = ProposalHead(self.head, part, quant)
        return HeadDrafter(head, self.head, embedding, recalls=recalls, proposals=proposals)


PART = DraftVocabulary(np.array([7, 3, 11, 20, 14]), VOCAB)  # most tokens of the answers are seen first
DRAFTERS: dict[str, Callable[[Models], Drafter]] = {
    "eagle": lambda models: models.eagle(),
    "lm": lambda models: models.lm(models.noisy),
    "itself": lambda models: models.lm(models.checkpoint),
    "ngram": lambda models: NGramDrafter(),
    "eagle+recall+ngram": lambda models: JoinedDrafter([models.eagle(recalls=True)], NGramDrafter(), VOCAB),
    "lm+eagle+ngram": lambda models: JoinedDrafter(
        [models.lm(models.noisy), models.eagle()], NGramDrafter(), VOCAB
    ),
    "eagle of a part": lambda models: models.eagle(part=PART),
    "lm of a part": lambda models: models.lm(models.noisy, PART),
    "itself of a part": lambda models: models.lm(models.checkpoint, PART),
    "eagle+recall+ngram of a part in int8": lambda models: JoinedDrafter(
        [models.eagle(True, PART, "int8")], NGramDrafter(), VOCAB
    ),
    "lm in int4+eagle of a part": lambda models: JoinedDrafter(
        [models.lm(models.noisy, quant="int4"), models.eagle(part=PART)], None, VOCAB
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    torch.set_num_threads(1)
    torch.manual_seed(4)
    made: list[Path] = [tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("noisy")]
    model = LlamaForCausalLM(CONFIG)
    model.save_pretrained(made[0])
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(made[1])
    return Models(*(Checkpoint(directory) for directory in made))


def generate(
    models: Models,
    drafter: Drafter,
    strategy: str,
    prompt: tuple[int, ...],
    sampling: SamplingParams,
    answers: AnswerStore | None = None,
    measured: MeasuredPipeline | None = None,
) -> tuple[list[int], Finished]:
    pipeline = virtual_pipeline(
        models.checkpoint,
        SPLIT,
        FixedCosts(),
        drafter=drafter,
        head=models.head,
        make_text=NoText,
        prefill_rows=8,
        blocks=models.blocks,
        answers=answers,
    )
    if measured is not None:
        share_measurements(pipeline.draft_node, measured)
    request = Request("s", prompt, sampling, TOKENS, strategy=strategy)
    outputs = pipeline.generate(request)
    return list(token_ids(outputs)), finished(outputs)


DRAFTING = tuple(name for name in STRATEGIES if name != "autoregressive")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("strategy", "kind"), dealt_thinly(DRAFTING, list(DRAFTERS)))
def test_every_strategy_with_every_drafter(models: Models, strategy: str, kind: str) -> None:
    for sampling, expected in zip(SAMPLINGS, models.expected, strict=True):
        tokens, end = generate(models, DRAFTERS[kind](models), strategy, PROMPT, sampling)
        assert tokens == expected
        if kind.startswith("itself") and sampling.temperature == 0:
            rounds = end.counters.accepted_per_round
            assert sum(rounds) > 2 * len(rounds), "a drafter that is the target is right in all it proposes"


@pytest.mark.parametrize("kind", ["eagle+recall+ngram", "lm+eagle+ngram"])
def test_drafting_by_lookup_alone_and_by_all_in_turns(models: Models, kind: str) -> None:
    for sampling, expected in zip(SAMPLINGS, models.expected, strict=True):
        drafter = DRAFTERS[kind](models)
        tokens, end = generate(models, drafter, "auto", PROMPT, sampling, measured=restless_pipeline())
        assert tokens == expected
        assert end.counters.draft_layers > 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("strategy", "kind"),
    dealt(
        product(DRAFTING, ["ngram", "eagle+recall+ngram", "lm+eagle+ngram"]),
        {("auto", "ngram"), ("flowspec", "lm+eagle+ngram")}.__contains__,
    ),
)
def test_the_same_question_again_with_earlier_answers(models: Models, strategy: str, kind: str) -> None:
    for sampling, expected in zip(SAMPLINGS, models.expected, strict=True):
        histories = []
        for _ in range(2):
            store, drafter = AnswerStore(1000), DRAFTERS[kind](models)
            ends = []
            for _ in range(2):
                tokens, end = generate(models, drafter, strategy, PROMPT, sampling, store)
                assert tokens == expected
                ends.append(end.counters)
            histories.append(ends)
        assert histories[0] == histories[1], "the same requests draft the same"
        first, again = histories[0]
        if kind == "ngram" and sampling.temperature == 0 and again.accepted_per_round:
            assert mean(again.accepted_per_round) > mean(first.accepted_per_round)


LEARNING: dict[str, Callable[[Models], ModelDrafter[Any]]] = {
    "eagle": lambda models: models.eagle(),
    "eagle in int4": lambda models: models.eagle(quant="int4"),
    "lm": lambda models: models.lm(models.noisy),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("strategy", "kind"),
    dealt(
        product(DRAFTING, LEARNING), thinnest(("flowspec", "auto", "naive_pp"), list(LEARNING)).__contains__
    ),
)
def test_a_vocabulary_that_is_learned_between_requests(
    models: Models, strategy: str, kind: str, tmp_path: Path
) -> None:
    file = CountsFile(tmp_path, "target", VOCAB)
    counted = np.zeros(VOCAB, dtype=np.int64)
    counted[[7, 3]] = ENOUGH_TOKENS // 2 - 1
    file.write(TokenCounts(VOCAB, counted))
    drafter = LEARNING[kind](models)
    drafter.learn_by(VocabularyLearner(4, file))
    proposed = []
    for sampling, expected in zip(SAMPLINGS, models.expected, strict=True):
        proposed.append(drafter.draft_tokens)
        assert generate(models, drafter, strategy, PROMPT, sampling)[0] == expected
    assert proposed == [VOCAB, 4]


@pytest.mark.parametrize("strategy", dealt(DRAFTING, ("auto", "naive_pp").__contains__))
def test_a_drafter_with_nothing_to_say_leaves_plain_decoding(models: Models, strategy: str) -> None:
    """A prompt of one token, and matches so long that there are none."""
    drafter = NGramDrafter(max_n=12, min_n=12)
    expected = models.reference.generate((7,), SAMPLINGS[0], TOKENS, frozenset()).token_ids
    tokens, end = generate(models, drafter, strategy, (7,), SAMPLINGS[0])
    assert tokens == expected
    assert end.counters.draft_rows_sent <= TOKENS, "the roots, and nothing else"
