"""Every strategy gives the tokens of the plain model when the model comes from a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product

import pytest

from flowedge.core.sampling import SamplingParams
from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.planning.in_process import load_blocks
from flowedge.strategies.registry import STRATEGIES
from tests.equality.conftest import Pair, request, token_ids
from tests.support.breadth import dealt, thinnest
from tests.support.gguf_files import BUNDLED, write_gguf

pytestmark = pytest.mark.slow
SPLIT = (2, 3, 3)
TOKENS = 20
PLAIN = [name for name in STRATEGIES if name not in ("pipespec", "pipespec_sync")]
SAMPLINGS = {"greedy": SamplingParams(), "T0.8": SamplingParams(temperature=0.8, top_k=40, seed=5)}


@dataclass
class Opened:
    """The bundled model from a GGUF file, in the library's blocks and as the plain model."""

    pair: Pair

    @cached_property
    def blocks(self) -> list[LayerBlock]:
        return load_blocks(self.pair.checkpoint, SPLIT, "none")

    @cached_property
    def plain(self) -> dict[str, tuple[int, ...]]:
        """The tokens of the plain model, by sampling."""
        model, prompt = ReferenceModel.load(self.pair.checkpoint), self.pair.prompt(40)
        return {
            name: tuple(model.generate(prompt, sampling, TOKENS).token_ids)
            for name, sampling in SAMPLINGS.items()
        }


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Opened]:
    """opened(type of the tensors) -> the model; each file is written once."""

    @cache
    def write(kind: str) -> Opened:
        path = tmp_path_factory.mktemp("gguf") / "model.gguf"
        return Opened(Pair.of(Checkpoint.open(str(write_gguf(path, BUNDLED, kind)))))

    return write


@pytest.mark.parametrize(
    ("kind", "strategy", "sampling"),
    dealt(
        product(("Q4_K", "Q8_0"), PLAIN, SAMPLINGS),
        thinnest(("Q4_K", "Q8_0"), ("flowspec", "auto", "autoregressive"), list(SAMPLINGS)).__contains__,
    ),
)
def test_lossless(opened: Callable[[str], Opened], kind: str, strategy: str, sampling: str) -> None:
    model = opened(kind)
    pair = model.pair
    pipeline = pair.pipeline(list(SPLIT), blocks=model.blocks)
    outputs = pipeline.generate(request(pair.prompt(40), SAMPLINGS[sampling], TOKENS, strategy))
    assert token_ids(outputs) == model.plain[sampling]
