"""Every strategy gives the tokens of the plain model when the model comes from a GGUF file."""

from __future__ import annotations

import pytest

from flowedge.core.sampling import SamplingParams
from flowedge.drafting.heads.eagle_head import load_eagle_head
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer import StreamDecoder, load_tokenizer
from flowedge.models.layers.head import LMHead, load_embedding
from flowedge.simulate.fixed_costs import FixedCosts
from flowedge.simulate.in_process import load_blocks, virtual_pipeline
from flowedge.strategies.registry import STRATEGIES
from tests.equality.conftest import Pair, request, token_ids
from tests.support.gguf_files import BUNDLED, write_gguf

pytestmark = pytest.mark.slow
SPLIT = (2, 3, 3)
TOKENS = 20
PLAIN = [name for name in STRATEGIES if name not in ("pipespec", "pipespec_sync")]
SAMPLINGS = {"greedy": SamplingParams(), "T0.8": SamplingParams(temperature=0.8, top_k=40, seed=5)}


@pytest.fixture(scope="module", params=["Q4_K", "Q8_0"])
def gguf_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    checkpoint = Checkpoint.open(str(write_gguf(path, BUNDLED, request.param)))
    head = LMHead.load(checkpoint)
    eagle = load_eagle_head(BUNDLED.parent / "eagle", head.weight.dtype)
    embedding = load_embedding(checkpoint, shared_with=head)
    return Pair(checkpoint, head, HeadDrafter(eagle, head, embedding), load_tokenizer(checkpoint))


@pytest.fixture(scope="module")
def blocks(gguf_pair: Pair) -> list[object]:
    return list(load_blocks(gguf_pair.checkpoint, SPLIT, "none"))


@pytest.fixture(scope="module")
def plain(gguf_pair: Pair) -> dict[str, tuple[int, ...]]:
    """The tokens of the plain model, by sampling."""
    model, prompt = ReferenceModel.load(gguf_pair.checkpoint), gguf_pair.prompt(40)
    return {
        name: tuple(model.generate(prompt, sampling, TOKENS).token_ids)
        for name, sampling in SAMPLINGS.items()
    }


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("strategy", PLAIN)
def test_lossless(gguf_pair: Pair, blocks: list, plain: dict, strategy: str, sampling: str) -> None:  # type: ignore[type-arg]
    pipeline = virtual_pipeline(
        gguf_pair.checkpoint,
        list(SPLIT),
        FixedCosts(),
        drafter=gguf_pair.drafter,
        head=gguf_pair.head,
        make_text=lambda: StreamDecoder(gguf_pair.tokenizer),
        blocks=blocks,
    )
    outputs = pipeline.generate(request(gguf_pair.prompt(40), SAMPLINGS[sampling], TOKENS, strategy))
    assert token_ids(outputs) == plain[sampling]
