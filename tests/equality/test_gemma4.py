"""Gemma 4: what its rows carry between blocks, whose strategies are in test_families.

The rows of these pipelines carry what later layers are given of each token, and the keys that they share.
"""

from __future__ import annotations

import pytest
import torch

from flowedge.models.block import LayerBlock
from tests.equality.conftest import request as asked
from tests.equality.conftest import token_ids
from tests.equality.test_families import (
    PROMPT,
    SAMPLINGS,
    TOKENS,
    VOCAB,
    Model,
    make_model,
)
from tests.models.pipeline import Pipeline

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["gemma4", "gemma4-small", "gemma4-moe"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A dense model, a small one with per-layer embeddings and shared keys, and a mixture."""
    return make_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.one_in(3)
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
