"""A drafter with the target's probabilities foresees every draw, and no draw depends on a drafter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from flowedge.core.request import Noise, Request
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.lm import LMDrafter
from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead, load_embedding
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import virtual_pipeline
from flowedge.strategies.registry import STRATEGIES
from tests.engine.histories import NoText
from tests.equality.conftest import SMALL_PROMPT as PROMPT
from tests.equality.conftest import SMALL_VOCAB as VOCAB
from tests.equality.conftest import finished, random_config, token_ids
from tests.support.breadth import dealt

HIDDEN, LAYERS, TOKENS, DEPTH = 32, 3, 28, 4
CHAIN = {"top_k": 1, "depth": DEPTH, "tree_nodes": DEPTH + 1}
SAMPLINGS = [
    SamplingParams(temperature=1.0, seed=5),
    SamplingParams(temperature=0.6, top_k=6, seed=6),
    SamplingParams(temperature=1.6, top_p=0.9, seed=7),
]
CONFIG = random_config(LAYERS, 0.35)


@dataclass
class Known:
    """A target and a drafter that gives the same probabilities."""

    checkpoint: Checkpoint
    head: LMHead
    drafter: Drafter


def known_by_itself(directory: Path) -> Known:
    LlamaForCausalLM(CONFIG).save_pretrained(directory)
    checkpoint = Checkpoint(directory)
    head = LMHead.load(checkpoint)
    return Known(
        checkpoint, head, LMDrafter(LanguageModel(LayerBlock.load(checkpoint, 0, LAYERS), head, VOCAB, ""))
    )


def known_by_a_head(directory: Path) -> Known:
    """Layers that add nothing leave a target whose final hidden state is its token's embedding."""
    model = LlamaForCausalLM(CONFIG)
    config = LlamaConfig(**{**CONFIG.to_dict(), "num_hidden_layers": 1})
    eagle = EagleHead(config, fc_bias=False).eval()
    for name, parameter in [*model.named_parameters(), *eagle.named_parameters()]:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.data.zero_()
    embedding = model.get_input_embeddings().weight.data
    embedding /= embedding.pow(2).mean(dim=-1, keepdim=True).sqrt()  # which the final norm leaves as it is
    eagle.fc.weight.data.copy_(torch.cat((torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)), dim=1))
    model.save_pretrained(directory)
    checkpoint = Checkpoint(directory)
    head = LMHead.load(checkpoint)
    return Known(checkpoint, head, HeadDrafter(eagle, head, load_embedding(checkpoint)))


KINDS = {"lm": known_by_itself, "eagle": known_by_a_head}


def generate(
    known: Known, sampling: SamplingParams, noise: Noise, strategy: str, options: dict[str, float]
) -> tuple[list[int], tuple[int, ...]]:
    """Return the tokens, and the number of tokens of each round."""
    pipeline = virtual_pipeline(
        known.checkpoint, [1, 2], FixedCosts(), drafter=known.drafter, head=known.head, make_text=NoText
    )
    request = Request("s", PROMPT, sampling, TOKENS, strategy=strategy, strategy_options=options, noise=noise)
    outputs = pipeline.generate(request)
    return list(token_ids(outputs)), finished(outputs).counters.accepted_per_round


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(4)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_of_first_children_is_accepted_to_its_end(
    kind: str, sampling: SamplingParams, tmp_path: Path
) -> None:
    """Of the drafter's own choice all is accepted, at every depth of every round."""
    known = KINDS[kind](tmp_path)
    tokens, rounds = generate(known, sampling, "shared", "naive_pp", CHAIN)
    reference = ReferenceModel.load(known.checkpoint)
    assert tokens == reference.generate(PROMPT, sampling, TOKENS, frozenset()).token_ids
    assert set(rounds[:-1]) == {DEPTH + 1}
    plainly, plain_rounds = generate(known, sampling, "plain", "naive_pp", CHAIN)
    assert plainly == tokens
    assert len(plain_rounds) > len(rounds), "the likeliest tokens alone are not what is drawn"


@pytest.mark.parametrize(
    "strategy",
    dealt([name for name in STRATEGIES if name != "autoregressive"], ("auto", "naive_pp").__contains__),
)
def test_plain_drafting_has_the_same_draws(strategy: str, tmp_path: Path) -> None:
    """With shared noise, which is the default, all other tests of equality run."""
    known = known_by_itself(tmp_path)
    expected = ReferenceModel.load(known.checkpoint).generate(PROMPT, SAMPLINGS[0], TOKENS, frozenset())
    assert generate(known, SAMPLINGS[0], "plain", strategy, {})[0] == expected.token_ids
