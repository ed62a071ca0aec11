"""NaN and infinity end the request with an error that says where they arose, for every strategy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from flowedge.core.arrays import Payload
from flowedge.core.errors import CheckpointError, NonFiniteError
from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE, VerificationPlace
from flowedge.core.request import Request
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.engine.finite import rows_not_finite
from flowedge.engine.stage.stage import Stage
from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead
from flowedge.models.quant.backend import WeightRows
from flowedge.models.quant.quantize import QUANTISATIONS, backend_of
from flowedge.models.sampling.draw_candidates import find_candidates
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import virtual_pipeline
from flowedge.strategies.registry import STRATEGIES
from tests.drafting.conftest import save_small_lm
from tests.engine.histories import NoText
from tests.equality.conftest import Pair, token_ids

PROMPT, SPOILT = (11, 12, 13, 14, 15, 16), 99  # the token whose embedding is NaN
SAMPLINGS = {
    "T0": SamplingParams(),
    "T1": SamplingParams(temperature=1.0, seed=5),
    "filtered": SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=5),
}
NAN = float("nan")
Spoil = Callable[[list[LayerBlock], LMHead], None]


@dataclass(frozen=True)
class Small:
    """A random target of two layers, another model, and a copy of the other whose logit 7 is NaN."""

    checkpoint: Checkpoint
    other: Checkpoint
    damaged: Path
    tokenizer: Any

    def pipeline(
        self,
        *,
        spoil: Spoil = lambda blocks, head: None,
        dtype: torch.dtype = torch.float32,
        drafters: tuple[str, ...] = ("ngram",),
        middles: int = 1,
        spoil_middle: Callable[[LanguageModel], None] = lambda middle: None,
        verification: VerificationPlace = DRAFT_NODE,
    ) -> Any:
        blocks = [LayerBlock.load(self.checkpoint, i, i + 1, dtype=dtype) for i in range(2)]
        head = LMHead.load(self.checkpoint, dtype=dtype)
        drafter = self.drafter(drafters, head)
        spoil(blocks, head)
        sides = [LanguageModel.load(self.other, head.vocab_size, torch.float32) for _ in range(middles)]
        for side in sides:
            spoil_middle(side)
        return virtual_pipeline(
            self.checkpoint,
            [1, 1],
            FixedCosts(),
            drafter=drafter,
            head=head,
            make_text=NoText,
            blocks=blocks,
            side_models=[[side] for side in sides],
            verification=verification,
        )

    def drafter(self, names: tuple[str, ...], head: LMHead) -> Drafter:
        paths = tuple(str(self.damaged) if name == "lm" else name for name in names)
        target = TargetModel(self.checkpoint, head, self.tokenizer, torch.float32)
        drafter = load_drafter(paths, target)
        assert drafter is not None
        return drafter


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    target = Checkpoint(save_small_lm(tmp_path_factory.mktemp("target"), seed=1))
    other = Checkpoint(save_small_lm(tmp_path_factory.mktemp("other"), seed=2))
    damaged = shutil.copytree(other.directory, tmp_path_factory.mktemp("damaged") / "lm")
    weights = load_file(damaged / "model.safetensors")
    weights["model.embed_tokens.weight"][7] = NAN
    save_file(weights, damaged / "model.safetensors", {"format": "pt"})
    return Small(target, other, damaged, load_tokenizer(target))


def ask(strategy: str = "flowspec", sampling: str = "T0", *prompt: int, session: str = "s") -> Request:
    return Request(session, prompt or PROMPT, SAMPLINGS[sampling], 12, strategy=strategy)


def spoil_layer(blocks: list[LayerBlock], _head: LMHead) -> None:
    blocks[1].layers[0].mlp.down_proj.weight.data[3, 4] = NAN


def spoil_head(_blocks: list[LayerBlock], head: LMHead) -> None:
    head.weight = torch.nn.Parameter(head.weight.data.clone(), requires_grad=False)
    head.weight.data[4000] = NAN


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_layer, "^device v2: 6 of 6 rows that layers 1 to 1 computed are not"),
        (spoil_head, "^device d0: the LM head's logits for the token at position 6"),
    ],
)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_damaged_target(small: Small, strategy: str, sampling: str, spoil: Spoil, said: str) -> None:
    with pytest.raises(NonFiniteError, match=said):
        small.pipeline(spoil=spoil).generate(ask(strategy, sampling))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("strategy", ["autoregressive", "flowspec"])
def test_a_damaged_last_stage_that_draws(small: Small, strategy: str, sampling: str) -> None:
    pipeline = small.pipeline(spoil=spoil_layer, verification=LAST_STAGE)
    with pytest.raises(NonFiniteError, match=r"^device v2: 1 of 1 rows that layers 1 to 1 computed are not"):
        pipeline.generate(ask(strategy, sampling))
    pipeline = small.pipeline(spoil=spoil_head, verification=LAST_STAGE)
    with pytest.raises(NonFiniteError, match=r"^device v2: the LM head's logits for the token at position 6"):
        pipeline.generate(ask(strategy, sampling))


def test_half_precision_and_its_overflow(small: Small) -> None:
    with pytest.raises(NonFiniteError, match="device v2: 6 of 6 rows"):
        small.pipeline(spoil=spoil_layer, dtype=torch.bfloat16).generate(ask())

    def overflow(blocks: list[LayerBlock], _head: LMHead) -> None:
        blocks[0].layers[0].mlp.down_proj.weight.data.fill_(6e4)

    with pytest.raises(NonFiniteError, match=r"device v1: .* layers 0 to 0 .* --dtype bfloat16 or float32"):
        small.pipeline(spoil=overflow, dtype=torch.float16).generate(ask())


def test_a_damaged_embedding_ends_the_requests_that_need_it_and_no_other(small: Small) -> None:
    def spoil(blocks: list[LayerBlock], _head: LMHead) -> None:
        embedding = blocks[0].embedding
        embedding.weight = torch.nn.Parameter(embedding.weight.data.clone(), requires_grad=False)
        embedding.weight.data[SPOILT] = NAN

    whole = token_ids(small.pipeline().generate(ask()))
    pipeline = small.pipeline(spoil=spoil)
    pipeline.start(ask("autoregressive", "T0", *PROMPT, SPOILT, 8, session="spoilt"))
    assert token_ids(pipeline.generate(ask())) == whole
    with pytest.raises(NonFiniteError, match="device v1: 2 of 8 rows that layers 0 to 0 computed"):
        pipeline.generate(ask("autoregressive", "T0", *PROMPT, SPOILT, 8, session="again"))
    assert (
        not any(stage.load().sessions for stage in pipeline.stages)
        and not pipeline.draft_node.load().sessions
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("strategy", ["naive_pp", "flowspec", "auto", "pipedec", "pipeinfer", "pipespec"])
@pytest.mark.parametrize(("drafters", "sampling"), [("lm", "T0"), ("lm", "filtered"), ("lm+ngram", "T1")])
def test_a_damaged_drafter(small: Small, strategy: str, drafters: str, sampling: str) -> None:
    pipeline = small.pipeline(drafters=tuple(drafters.split("+")), middles=0)
    with pytest.raises(NonFiniteError, match="device d0: the scores of drafter in use are not finite"):
        pipeline.generate(ask(strategy, sampling))


def test_a_damaged_eagle_head(pair: Pair) -> None:
    drafter = pair.drafter
    assert isinstance(drafter, HeadDrafter)
    weight = next(drafter.head.parameters())
    before = weight.data.clone()
    try:
        weight.data.view(-1)[:1000] = NAN
        with pytest.raises(NonFiniteError, match="device d0: the scores of drafter"):
            pair.pipeline([4, 4]).generate(ask())
    finally:
        weight.data.copy_(before)


def test_a_damaged_middle_model(small: Small) -> None:
    def spoil(middle: LanguageModel) -> None:
        middle.block.layers[0].mlp.down_proj.weight.data[3, 4] = NAN

    with pytest.raises(NonFiniteError, match=r"device m1: .* rows that layers 0 to 1 of the middle model"):
        small.pipeline(spoil_middle=spoil).generate(ask("pipespec"))


class Careless(Stage):
    """A stage that sends whatever it has computed."""

    def _count_failed(self, live: Payload) -> int:
        return 0


def test_what_a_careless_device_sends_is_refused_where_it_arrives(small: Small) -> None:
    pipeline = small.pipeline(spoil=spoil_layer)
    pipeline.stages[1].__class__ = Careless
    with pytest.raises(NonFiniteError, match="device d0: 6 of 6 rows that device v2 sent are not finite"):
        pipeline.generate(ask())

    def spoil_first(blocks: list[LayerBlock], _head: LMHead) -> None:
        blocks[0].layers[0].mlp.down_proj.weight.data[3, 4] = NAN

    pipeline = small.pipeline(spoil=spoil_first)
    pipeline.stages[0].__class__ = Careless
    with pytest.raises(NonFiniteError, match="device v2: 6 of 6 rows that the device before it sent"):
        pipeline.generate(ask())


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_damaged_reference_compares_with_nothing(small: Small, sampling: str) -> None:
    reference = ReferenceModel.load(small.checkpoint)
    reference.model.model.layers[1].mlp.down_proj.weight.data[3, 4] = NAN
    for judge in (
        lambda: reference.judge(PROMPT, [0, 0, 0], SAMPLINGS[sampling], 0.0),
        lambda: reference.generate(PROMPT, SAMPLINGS[sampling], 3),
        lambda: reference.measure_tolerance(PROMPT),
    ):
        with pytest.raises(NonFiniteError, match="the plain model's logits are not finite"):
            judge()


@pytest.mark.parametrize("quant", [name for name in QUANTISATIONS if name != "none"])
def test_damaged_weights_are_not_quantised(quant: str) -> None:
    weight = torch.randn(64, 128)
    weight[50, 3] = NAN
    with pytest.raises(CheckpointError, match="layer 3 has values that are not finite"):
        backend_of(quant).encode(WeightRows.of(weight, "layer 3"))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_candidates_of_a_gpu_leave_damaged_logits_to_the_host(value: float, sampling: str) -> None:
    logits = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    logits[1, 20], logits[2, 5] = value, -float("inf")  # a token that is impossible is no damage
    streams = torch.arange(3)
    params = SAMPLINGS[sampling]
    candidates = find_candidates(logits, streams, params)
    assert candidates.draw(1, params, 6) < 0
    assert candidates.draw(0, params, 5) >= 0 and candidates.draw(2, params, 7) >= 0


def payloads(values: torch.Tensor) -> list[Payload]:
    return [
        values.numpy(),
        values.half().numpy(),
        values.bfloat16().view(torch.uint16).numpy(),
        values.half().numpy()[:, ::2].repeat(2, axis=1),
    ]


def test_rows_are_counted_in_every_dtype() -> None:
    finite = torch.tensor([[0.0, -1.5, 6e4, -6e4], [1e-7, -0.0, 3.0, 1.0]])
    for payload in payloads(finite):
        assert rows_not_finite(payload) == 0 and rows_not_finite(payload[:0]) == 0
    for value in (NAN, float("inf"), -float("inf")):
        damaged = finite.clone()
        damaged[1, 2] = value
        for payload in payloads(damaged):
            assert rows_not_finite(payload) == 1
    assert rows_not_finite(np.array([[0x7F80, 0]], dtype=np.uint16)) == 1
    assert rows_not_finite(np.array([[2**63 - 1]], dtype=np.uint64)) == 0
