"""Hidden states of three layers on different stages reach the drafter; the tokens stay the plain model's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from flowedge.core.arrays import Payload
from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.core.messages import Segment
from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE, VerificationPlace
from flowedge.core.request import Finished, Request
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter, DraftLayer, GrowRequest
from flowedge.drafting.heads.eagle3_head import Eagle3Head
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.joined import JoinedDrafter
from flowedge.drafting.lm import LMDrafter
from flowedge.drafting.loading import TargetModel, drafter_kinds, drafter_taps, load_drafter
from flowedge.drafting.lookup.ngram import NGramDrafter
from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead
from flowedge.models.taps import Taps
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import virtual_pipeline
from flowedge.planning.virtual_pipeline import VirtualObserver
from flowedge.strategies.registry import STRATEGIES
from tests.drafting.eagle3_files import save_eagle3_head
from tests.engine.histories import NoText
from tests.equality.conftest import SMALL_PROMPT as PROMPT
from tests.equality.conftest import SMALL_VOCAB as VOCAB
from tests.equality.conftest import finished, random_config, token_ids
from tests.support.breadth import dealt, dealt_diagonally, dealt_thinly

HIDDEN, LAYERS, TOKENS = 32, 8, 24
TAPS = (2, 4, 5)
SAMPLINGS = (SamplingParams(), SamplingParams(temperature=1.0, seed=5))
DRAFTING = [name for name in STRATEGIES if name != "autoregressive"]
CONFIG = random_config(LAYERS, 0.25)


@dataclass
class Models:
    checkpoint: Checkpoint
    model: LlamaForCausalLM
    noisy: Checkpoint
    eagle3: Path
    head: LMHead

    @cached_property
    def reference(self) -> ReferenceModel:
        return ReferenceModel.load(self.checkpoint)

    def target(self) -> TargetModel:
        return TargetModel(self.checkpoint, self.head, None, torch.float32)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    torch.set_num_threads(1)
    torch.manual_seed(4)
    directory, noisy, eagle3 = (tmp_path_factory.mktemp(name) for name in ("target", "noisy", "eagle3"))
    model = LlamaForCausalLM(CONFIG)
    model.save_pretrained(directory)
    changed = LlamaForCausalLM.from_pretrained(directory)
    for parameter in changed.parameters():
        parameter.data += 0.01 * torch.randn_like(parameter)
    changed.save_pretrained(noisy)
    save_eagle3_head(eagle3, hidden=HIDDEN, vocab=VOCAB, draft_vocab=15)
    checkpoint = Checkpoint(directory)
    return Models(checkpoint, model.eval(), Checkpoint(noisy), eagle3, LMHead.load(checkpoint))


def generate(
    models: Models,
    drafter: Drafter,
    strategy: str,
    sampling: SamplingParams,
    split: Sequence[int],
    place: VerificationPlace = DRAFT_NODE,
    *,
    keeps_taps: bool = False,
    observer: VirtualObserver | None = None,
) -> tuple[list[int], Finished]:
    pipeline = virtual_pipeline(
        models.checkpoint,
        split,
        FixedCosts(),
        drafter=drafter,
        head=models.head,
        make_text=NoText,
        prefill_rows=8,
        verification=place,
        keeps_taps=keeps_taps,
        observer=observer,
    )
    request = Request("s", PROMPT, sampling, TOKENS, strategy=strategy)
    outputs = pipeline.generate(request)
    return list(token_ids(outputs)), finished(outputs)


def plain(models: Models, sampling: SamplingParams) -> list[int]:
    return models.reference.generate(PROMPT, sampling, TOKENS, frozenset()).token_ids


@dataclass
class Given:
    """The features and tokens that a drafter was given as true rows."""

    features: list[Payload] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


class TappingDrafter(LMDrafter):
    """A drafter whose proposals are often right, and which keeps the features that it is given."""

    needs_features = True

    def __init__(self, checkpoint: Checkpoint, taps: Taps = TAPS) -> None:
        self.taps = taps
        block, head = LayerBlock.load(checkpoint, 0, LAYERS), LMHead.load(checkpoint)
        super().__init__(LanguageModel(block, head, VOCAB, ""))
        self.given = Given()

    def grow(self, requests: Sequence[GrowRequest]) -> list[DraftLayer]:
        for request in requests:
            if request.next_tokens is not None:
                assert request.features is not None
                self.given.features.append(request.features)
                self.given.tokens += request.next_tokens.tolist()
        return super().grow(requests)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("split", "strategy", "place", "keeps"),
    dealt_diagonally(
        ["8", "35", "2222", "53", "11111111"],
        ["naive_pp", "flowspec", "auto"],
        [DRAFT_NODE, LAST_STAGE],
        ["with-rows", "kept"],
        one_in=5,
    ),
)
def test_tapped_states_are_the_whole_models(
    models: Models, split: str, strategy: str, place: VerificationPlace, keeps: str
) -> None:
    drafter, layers = TappingDrafter(models.noisy), list(map(int, split))
    tokens, end = generate(models, drafter, strategy, SAMPLINGS[1], layers, place, keeps_taps=keeps == "kept")
    assert end.counters.prunes > 0
    check_given(models, drafter, tokens, strategy)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("taps", "keeps"), [((0,), False), ((3,), True), ((0, 7), True), ((1, 3, 4, 6), True), ((6, 7), False)]
)
def test_any_layers_may_be_tapped(models: Models, taps: Taps, keeps: bool) -> None:
    drafter = TappingDrafter(models.noisy, taps)
    tokens, _ = generate(models, drafter, "flowspec", SAMPLINGS[1], [3, 1, 4], keeps_taps=keeps)
    assert tokens == plain(models, SAMPLINGS[1])
    check_given(models, drafter, tokens, "flowspec")


def check_given(models: Models, drafter: TappingDrafter, tokens: list[int], strategy: str) -> None:
    """Hold what a drafter was given against the whole model's states, the input of layer i for tap i."""
    features, text = np.concatenate(drafter.given.features), [PROMPT[0], *drafter.given.tokens]
    assert text == [*PROMPT, *tokens][: len(text)]
    assert len(text) > len(PROMPT) + TOKENS // 2 or strategy == "auto", "which may come to decode plainly"
    with torch.inference_mode():
        states = models.model(torch.tensor([text]), output_hidden_states=True).hidden_states
    expected = torch.cat([states[layer][0, :-1] for layer in (-1, *drafter.taps)], dim=-1)
    np.testing.assert_allclose(features, expected.numpy(), rtol=1e-4, atol=2e-4)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("strategy", "keeps"), dealt_thinly(["naive_pp", "auto"], [False, True]))
def test_tokens_are_the_plain_models(models: Models, strategy: str, keeps: bool) -> None:
    for sampling in SAMPLINGS:
        expected = plain(models, sampling)
        eagle3 = load_drafter((str(models.eagle3),), models.target())
        assert isinstance(eagle3, HeadDrafter) and isinstance(eagle3.head, Eagle3Head)
        assert eagle3.needs_features and eagle3.taps == TAPS
        for drafter, split in ((eagle3, [1, 4, 3]), (JoinedDrafter([eagle3], NGramDrafter(), VOCAB), [8])):
            tokens, end = generate(models, drafter, strategy, sampling, split, keeps_taps=keeps)
            assert tokens == expected
            assert end.counters.draft_layers > 0


LAYERS_KEY = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("layers", "layout"),
    [
        ((3,), {}),
        ((0, 7), {"norm_output": True, "speculators": True}),
        ((1, 3, 4, 6), {"fc_norm": True, "norm_output": True}),
    ],
)
@pytest.mark.parametrize("keeps", [False, True], ids=["with-rows", "kept"])
def test_heads_of_other_layers(
    models: Models, layers: Taps, layout: dict[str, bool], keeps: bool, tmp_path: Path
) -> None:
    sizes = {"hidden": HIDDEN, "vocab": VOCAB, "draft_vocab": 15}
    save_eagle3_head(tmp_path, **sizes, taps=len(layers), **{LAYERS_KEY: list(layers)}, **layout)
    assert drafter_taps((str(tmp_path), "ngram"), LAYERS) == layers
    for sampling, split in zip(SAMPLINGS, ([1, 4, 3], [8]), strict=True):
        drafter = load_drafter((str(tmp_path),), models.target())
        assert drafter is not None and drafter.taps == layers
        tokens, end = generate(models, drafter, "flowspec", sampling, split, keeps_taps=keeps)
        assert tokens == plain(models, sampling) and end.counters.draft_layers > 0


def test_joined_heads_read_their_own_layers_of_all(models: Models, tmp_path: Path) -> None:
    sizes = {"hidden": HIDDEN, "vocab": VOCAB, "draft_vocab": 15}
    own = save_eagle3_head(tmp_path, **sizes, taps=2, **{LAYERS_KEY: [3, 5]})
    names = (str(models.eagle3), str(own))
    assert drafter_taps(names, LAYERS) == (2, 3, 4, 5)
    drafter = load_drafter(names, models.target())
    assert isinstance(drafter, JoinedDrafter) and drafter.taps == (2, 3, 4, 5)
    rows = torch.randn(6, 5 * HIDDEN, generator=torch.Generator().manual_seed(0))
    for name, taps, beside in zip(names, (TAPS, (3, 5)), vars(drafter)["_models"], strict=True):
        alone = load_drafter((name,), models.target())
        assert isinstance(alone, HeadDrafter)
        columns = [0, *(1 + drafter.taps.index(tap) for tap in taps)]
        given = rows.view(6, 5, HIDDEN)[:, columns].flatten(1)
        assert torch.equal(alone.head.true_states(given), beside.head.true_states(rows))
    tokens, _ = generate(models, drafter, "flowspec", SAMPLINGS[1], [3, 2, 3])
    assert tokens == plain(models, SAMPLINGS[1])


def test_a_head_of_layers_that_the_model_has_not(models: Models, tmp_path: Path) -> None:
    sizes = {"hidden": HIDDEN, "vocab": VOCAB, "draft_vocab": 15}
    save_eagle3_head(tmp_path, **sizes, taps=2, **{LAYERS_KEY: [3, 8]})
    said = r"taps .3, 8. do not ascend within the model's 8 layers"
    with pytest.raises(CheckpointError, match=said):
        drafter_taps((str(tmp_path),), LAYERS)
    with pytest.raises(CheckpointError, match=said):
        load_drafter((str(tmp_path),), models.target())


class Widths(VirtualObserver):
    """Notes the widths of the draft rows that leave each stage."""

    def __init__(self) -> None:
        self.of_stage: defaultdict[int, set[int]] = defaultdict(set)

    def sent(self, sender: int, message: object, start: float, left: float, arrives: float) -> None:
        if isinstance(message, Segment) and not message.committed and message.payload.ndim > 1:
            self.of_stage[sender].add(message.payload.shape[1])


@pytest.mark.parametrize("strategy", dealt(DRAFTING, ("auto", "pipespec").__contains__))
def test_kept_values_cross_no_link_with_draft_rows(models: Models, strategy: str) -> None:
    drafter, widths = TappingDrafter(models.noisy), Widths()
    tokens, _ = generate(models, drafter, strategy, SAMPLINGS[0], [3, 2, 3], keeps_taps=True, observer=widths)
    assert tokens == plain(models, SAMPLINGS[0])
    assert widths.of_stage == {stage: {HIDDEN} for stage in range(3)}


def test_what_the_draft_node_knows_before_it_loads_the_head(models: Models) -> None:
    assert drafter_kinds(("ngram", str(models.eagle3))) == ("ngram", "eagle3")
    assert drafter_taps(("ngram", str(models.eagle3)), LAYERS) == TAPS
    assert drafter_taps(("bundled", "ngram"), LAYERS) == ()
    with pytest.raises(BadRequestError, match="7 layers or more"):
        drafter_taps((str(models.eagle3),), 4)


def test_a_head_for_another_width(models: Models, tmp_path: Path) -> None:
    save_eagle3_head(tmp_path, hidden=16, vocab=VOCAB, draft_vocab=9)
    with pytest.raises(CheckpointError, match=r"hidden size 16 and 24 tokens, .* has 32 and 24"):
        load_drafter((str(tmp_path),), models.target())
    save_eagle3_head(tmp_path, hidden=16, vocab=VOCAB, draft_vocab=9, target_hidden=HIDDEN)
    with pytest.raises(CheckpointError, match=r"16 wide and cannot share .* which is 32 wide; it needs an"):
        load_drafter((str(tmp_path),), models.target())
    save_eagle3_head(
        tmp_path, hidden=16, vocab=VOCAB, draft_vocab=9, target_hidden=HIDDEN, own_embedding=True
    )
    narrow = load_drafter((str(tmp_path),), models.target())
    assert narrow is not None
    assert generate(models, narrow, "auto", SAMPLINGS[0], [4, 4])[0] == plain(models, SAMPLINGS[0])


def test_drafters_that_tap_different_layers_are_not_joined(models: Models) -> None:
    tapping = TappingDrafter(models.noisy)
    tapping.taps = (1,)
    eagle3 = load_drafter((str(models.eagle3),), models.target())
    assert eagle3 is not None
    with pytest.raises(ValueError, match=r"one drafter taps the layers \(1,\)"):
        JoinedDrafter([eagle3, tapping], None, VOCAB)
