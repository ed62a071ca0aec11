"""Gemma 4: every strategy gives the tokens of transformers, wherever the layers are divided.

The rows of these pipelines carry what later layers are given of each token, and the keys that they share.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from transformers import AutoModelForCausalLM

from flowedge.core.pipeline_config import LAST_STAGE
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from tests.equality.conftest import request as asked
from tests.equality.conftest import token_ids
from tests.equality.test_families import (
    OTHERS,
    PRECISIONS,
    PROMPT,
    SAMPLINGS,
    SPLITS,
    TESTED,
    TOKENS,
    VOCAB,
    Model,
)
from tests.models.layer_pairs import tiny_config
from tests.models.pipeline import Pipeline
from tests.models.tiny_families import randomise
from tests.support.breadth import dealt, thinnest

pytestmark = pytest.mark.slow
# Inputs of linear layers are multiples of what the kernels quantise together.
SIZES = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32, "global_head_dim": 64}
NAMES: dict[str, dict[str, int]] = {
    "gemma4": {},
    "gemma4-small": {"hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": VOCAB},
    "gemma4-moe": {"moe_intermediate_size": 64},
}


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A dense model, a small one with per-layer embeddings and shared keys, and a mixture."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    config = tiny_config(request.param, vocab_size=VOCAB, **SIZES, **NAMES[request.param])
    made = AutoModelForCausalLM.from_config(config)
    randomise(made)
    made.save_pretrained(directory)
    return Model(Checkpoint.open(str(directory)))


@pytest.mark.parametrize(
    ("precision", "stages", "sampling", "strategy"),
    dealt(
        product(PRECISIONS, SPLITS, SAMPLINGS, OTHERS),
        thinnest(list(PRECISIONS), list(SPLITS), list(SAMPLINGS), TESTED).__contains__,
    ),
)
def test_every_strategy(model: Model, precision: str, stages: int, sampling: str, strategy: str) -> None:
    outputs = model.pipeline(precision, stages).generate(asked(PROMPT, SAMPLINGS[sampling], TOKENS, strategy))
    assert token_ids(outputs) == model.plain(precision, sampling)


@pytest.mark.parametrize("strategy", ["auto", "flowspec"])
def test_where_the_last_stage_draws(model: Model, strategy: str) -> None:
    outputs = model.pipeline(verification=LAST_STAGE).generate(
        asked(PROMPT, SAMPLINGS["T1"], TOKENS, strategy)
    )
    assert token_ids(outputs) == model.plain("fp32", "T1")


def test_a_prompt_begins_with_the_rows_of_an_ended_session(model: Model) -> None:
    served = model.pipeline(kept_rows=10_000)
    for name, prompt in (("a", PROMPT), ("b", (*PROMPT[:30], 1, 2, 3)), ("c", PROMPT)):
        outputs = served.generate(asked(prompt, SAMPLINGS["T1"], TOKENS, "auto", session=name))
        if prompt is PROMPT:
            assert token_ids(outputs) == model.plain("fp32", "T1")


@pytest.mark.parametrize("kv", ["native", "int8"])
@torch.inference_mode()
def test_bits_do_not_depend_on_the_division(model: Model, kv: str) -> None:
    """Also where a block reads the keys of an earlier one from a cache in 8 bits."""
    options = {"dtype": torch.bfloat16, "kv": kv, "exact": True}
    whole = Pipeline(model.checkpoint, 1, **options)
    expected = torch.cat([whole.commit(PROMPT[:25]), whole.commit(PROMPT[25:])])
    for blocks in (2, 3, 4):
        divided = Pipeline(model.checkpoint, blocks, **options)
        assert torch.equal(torch.cat([divided.commit([token]) for token in PROMPT]), expected)


def test_the_table_of_layer_inputs_follows_the_quantisation(model: Model) -> None:
    plain, packed = (
        LayerBlock.load(model.checkpoint, 0, 1, quant=quant, dtype=torch.float32)
        for quant in ("none", "int8")
    )
    if plain.layer_inputs is None:
        assert not model.checkpoint.architecture.layer_input
        return
    assert packed.layer_inputs is not None
    tokens = torch.arange(VOCAB)
    rows, rounded = (each.layer_inputs.table(tokens) for each in (plain, packed))
    assert 0 < float((rows - rounded).norm() / rows.norm()) < 0.01
    assert packed.weight_bytes == LayerBlock.required_bytes(model.checkpoint, 0, 1, quant="int8")
