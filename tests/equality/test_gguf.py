"""Every strategy gives the plain model's tokens, ties under rounding aside, from a GGUF file."""

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
    def reference(self) -> ReferenceModel:
        return ReferenceModel.load(self.pair.checkpoint)

    @cached_property
    def tolerance(self) -> float:
        """What rounding alone changes: a row is rounded to 8 bits before it meets a weight of these types."""
        return self.reference.measure_tolerance(self.pair.prompt(128)).value


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Opened]:
    """opened(type of the tensors) -> the model; each file is written once."""

    @cache
    def write(kind: str) -> Opened:
        path = tmp_path_factory.mktemp("gguf") / "model.gguf"
        return Opened(Pair.of(Checkpoint.open(str(write_gguf(path, BUNDLED, kind)))))

    return write


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("kind", "strategy", "sampling"),
    dealt(
        product(("Q4_K", "Q8_0"), PLAIN, SAMPLINGS),
        thinnest(("Q4_K", "Q8_0"), ("flowspec", "auto", "autoregressive"), list(SAMPLINGS)).__contains__,
    ),
)
def test_lossless(opened: Callable[[str], Opened], kind: str, strategy: str, sampling: str) -> None:
    """A difference has to be a tie within the measured effect of the number of rows."""
    model = opened(kind)
    pair, prompt = model.pair, model.pair.prompt(40)
    pipeline = pair.pipeline(list(SPLIT), blocks=model.blocks)
    tokens = token_ids(pipeline.generate(request(prompt, SAMPLINGS[sampling], TOKENS, strategy)))
    judgement = model.reference.judge(prompt, tokens, SAMPLINGS[sampling], model.tolerance)
    assert judgement.passed and judgement.checked == TOKENS, judgement
    assert len(judgement.ties) <= 1, judgement
