"""The EAGLE-3 head against its definition, grown, extended and rewound; and heads that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.drafting.drafter import Frontier
from flowedge.drafting.drafter_memory import drafter_memory
from flowedge.drafting.heads.eagle3_head import load_eagle3_head
from flowedge.drafting.heads.eagle3_head import save_eagle3_head as save_eagle3_head_again
from flowedge.drafting.heads.head_drafter import SCRATCH_ROWS, HeadDrafter
from flowedge.drafting.heads.head_settings import Eagle3Wiring
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.lm_head import LMHead
from flowedge.models.taps import check_taps, eagle3_taps, row_width
from tests.drafting.conftest import save_small_lm
from tests.drafting.eagle3_files import PlainEagle3, save_eagle3_head
from tests.drafting.trees import extend, grow, grow_and_check
from tests.models.conftest import edit_config, edit_tensors

HIDDEN, VOCAB, DRAFT_VOCAB = 32, 60, 25


class Setting:
    """A random head, and the rows and tokens of one text."""

    def __init__(self, directory: Path, seed: int = 0, rows: int = 40, taps: int = 3, **layout: Any) -> None:
        save_eagle3_head(
            directory, hidden=HIDDEN, vocab=VOCAB, draft_vocab=DRAFT_VOCAB, seed=seed, taps=taps, **layout
        )
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(VOCAB, HIDDEN).requires_grad_(False)
        self.plain = PlainEagle3(directory)
        rng = np.random.default_rng(seed)
        self.rows = rng.standard_normal((rows, (1 + taps) * HIDDEN)).astype(np.float32)
        self.next_tokens = rng.integers(0, VOCAB, rows)
        self._head = load_eagle3_head(directory, torch.float32)

    def drafter(self) -> HeadDrafter:
        target_head = LMHead(nn.Parameter(torch.zeros(VOCAB, HIDDEN), requires_grad=False), "lm_head.weight")
        drafter = HeadDrafter(self._head, target_head, self.embedding, eagle3_taps(8))
        drafter.open("s", len(self.rows), 0)
        return drafter

    @torch.inference_mode()
    def check_below(self, rows: int, path: list[int], tokens: np.ndarray, log_probs: np.ndarray) -> None:
        """`path` is a chain of draft tokens below the root, after so many true rows."""
        known = [*self.next_tokens[:rows].tolist(), *path]
        before = self.plain.fuse(torch.from_numpy(self.rows[:rows, HIDDEN:]))
        for length in range(rows, len(known) + 1):
            states = self.plain.states(self.embedding(torch.tensor(known[:length])), before)
            before = torch.cat((before, states[-1:]))
        expected = torch.full((VOCAB,), -torch.inf)
        expected[self.plain.target_ids] = self.plain.log_probs(before[-1:])[0]
        np.testing.assert_allclose(log_probs, expected[tokens].numpy(), atol=1e-4)
        np.testing.assert_allclose(log_probs, expected.topk(len(tokens)).values.numpy(), atol=1e-4)


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"seed": 1, "speculators": True, "norm_before_residual": True},
    {"taps": 1, "eagle_aux_hidden_state_layer_ids": [3]},
    {"taps": 2, "eagle_aux_hidden_state_layer_ids": [0, 7], "norm_output": True},
    {"taps": 4, "eagle_aux_hidden_state_layer_ids": [1, 2, 4, 6], "fc_norm": True, "norm_output": True},
    {"norm_before_fc": True, "speculators": True, "query_key_norms": True},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "+".join(layout) or "published")
def test_growth_equals_the_plain_head(tmp_path: Path, layout: dict[str, Any]) -> None:
    setting = Setting(tmp_path, **layout)
    drafter = setting.drafter()
    rows = 0
    for growth, step in enumerate((7, 1, 12)):
        extend(drafter, "s", setting.rows[rows : rows + step], setting.next_tokens[rows : rows + step])
        rows += step
        grow_and_check(
            drafter, growth, 3, lambda *given, rows=rows: setting.check_below(rows, *given), vocab=VOCAB
        )


def test_rewound_rows_are_forgotten(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    drafter = setting.drafter()
    extend(drafter, "s", setting.rows[:9], setting.next_tokens[:9])
    grow(drafter, "s", 1, Frontier([0], [-1], [0]), 3)
    drafter.rewind("s", 4)
    extend(drafter, "s", setting.rows[4:6], setting.next_tokens[4:6])
    grow_and_check(drafter, 2, 3, lambda *given: setting.check_below(6, *given), vocab=VOCAB)


def test_a_wide_layer_has_the_whole_draft_vocabulary_and_no_more(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    drafter = setting.drafter()
    extend(drafter, "s", setting.rows[:5], setting.next_tokens[:5])
    layer = grow(drafter, "s", 1, Frontier([0], [-1], [0]), VOCAB)
    assert sorted(layer.tokens[0].tolist()) == setting.plain.target_ids.tolist()


def test_a_vocabulary_as_large_as_the_targets_needs_no_maps(tmp_path: Path) -> None:
    save_eagle3_head(tmp_path, hidden=HIDDEN, vocab=VOCAB, draft_vocab=VOCAB)
    edit_tensors(tmp_path, {"d2t": None, "t2d": None})
    head = load_eagle3_head(tmp_path, torch.float32)
    assert head.vocabulary is not None and head.vocabulary.tolist() == list(range(VOCAB))


def test_maps_that_cannot_be(tmp_path: Path) -> None:
    def refused(said: str, **changes: torch.Tensor | None) -> None:
        save_eagle3_head(tmp_path, hidden=HIDDEN, vocab=VOCAB, draft_vocab=DRAFT_VOCAB)
        edit_tensors(tmp_path, changes)
        with pytest.raises(CheckpointError, match=said):
            load_eagle3_head(tmp_path, torch.float32)

    save_eagle3_head(tmp_path, hidden=HIDDEN, vocab=VOCAB, draft_vocab=DRAFT_VOCAB)
    offsets = load_file(tmp_path / "model.safetensors")["d2t"]
    ids = offsets + torch.arange(DRAFT_VOCAB)

    def moved(index: int, by: int) -> torch.Tensor:
        changed = offsets.clone()
        changed[index] += by
        return changed

    refused("d2t leads to a token that is not within", d2t=moved(-1, VOCAB))
    refused("d2t leads to a token that is not within", d2t=moved(0, -VOCAB))
    refused("d2t leads to a token twice", d2t=moved(1, int(ids[0] - ids[1])))
    refused("d2t is torch.int32", d2t=moved(0, 0).int())
    refused("d2t is missing", d2t=None)
    refused("t2d is missing", t2d=None)
    refused("t2d does not mark", t2d=torch.ones(VOCAB, dtype=torch.bool))
    refused("midlayer.hidden_norm.weight is missing", **{"midlayer.hidden_norm.weight": None})
    refused("fc.weight is", **{"fc.weight": torch.zeros(HIDDEN, HIDDEN)})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_hidden_layers": 2}, "no EAGLE-3 head: num_hidden_layers is 2"),
        ({"draft_vocab_size": "many"}, "draft_vocab_size is 'many'"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "eagle_config.use_mtp_layernorm to True"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "eagle_config.use_aux_hidden_state to False"),
        ({"eagle_config": {"frobnicate": 1}}, "eagle_config.frobnicate, which is not supported"),
        ({"eagle_config": [1]}, "eagle_config is .1., not an object"),
        ({"ptd_token_id": 7}, "ptd_token_id to 7"),
        ({"parallel_drafting": True}, "parallel_drafting to True"),
        ({"logit_scale": 0.5}, "logit_scale to 0.5"),
        ({"norm_before_fc": True, "fc_norm": True}, "both norm_before_fc and fc_norm"),
        ({"norm_output": "yes"}, "norm_output is 'yes', not true or false"),
        ({"eagle_aux_hidden_state_layer_ids": [1, -2]}, "layer_ids is .1, -2., not a list of layers"),
        ({"eagle_aux_hidden_state_layer_ids": 3}, "layer_ids is 3, not a list of layers"),
        ({"num_aux_hidden_states": 5}, "num_aux_hidden_states is 5, but the head reads 3 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, r"fc.weight is .32, 96., expected .32, 64."),
        ({"fc_norm": True}, r"fc_norm.0.weight is missing"),
        ({"speculators_model_type": "mtp"}, "speculators_model_type is 'mtp'; of these heads 'eagle3'"),
        ({"speculators_model_type": "eagle3"}, "transformer_layer_config has the model_type None"),
        (
            {"speculators_model_type": "eagle3", "transformer_layer_config": {"model_type": "llama"}},
            "norm_before_residual is missing",
        ),
        (
            {"speculators_model_type": "eagle3", "transformer_layer_config": {"model_type": "gpt_oss"}},
            "has the model_type 'gpt_oss'; known are llama and qwen3",
        ),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, settings: dict[str, object], said: str) -> None:
    save_eagle3_head(tmp_path, hidden=HIDDEN, vocab=VOCAB, draft_vocab=DRAFT_VOCAB)
    edit_config(tmp_path, **settings)
    with pytest.raises(CheckpointError, match=said):
        load_eagle3_head(tmp_path, torch.float32)


LAYERS_KEY = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("settings", "taps"),
    [
        ({}, (2, 4, 5)),
        ({LAYERS_KEY: []}, (2, 4, 5)),
        ({LAYERS_KEY: [1, 3]}, (1, 3)),
        ({"aux_hidden_state_layer_ids": [0, 7]}, (0, 7)),
        ({"eagle_config": {LAYERS_KEY: [1, 3, 4]}}, (2, 4, 5)),
        ({"eagle_config": {LAYERS_KEY: [2, 4, 5], "use_aux_hidden_state": True}}, (2, 4, 5)),
        ({LAYERS_KEY: [2, 4], "eagle_config": {LAYERS_KEY: [1, 3]}}, (2, 4)),
    ],
)
def test_what_the_ids_of_layers_mean(settings: dict[str, Any], taps: tuple[int, ...]) -> None:
    wiring = Eagle3Wiring.of(settings, Path("config.json"))
    assert wiring.tapped(8, Path("config.json")) == taps and wiring.taps == len(taps)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({LAYERS_KEY: [2, 8]}, r"taps .2, 8. do not ascend within the model's 8 layers"),
        ({LAYERS_KEY: [4, 2]}, r"taps .4, 2. do not ascend"),
        ({LAYERS_KEY: [2, 2]}, r"taps .2, 2. do not ascend"),
        ({LAYERS_KEY: [1, 3], "eagle_config": {LAYERS_KEY: [1, 3]}}, r"layers .1, 3., .* those of .2, 4."),
    ],
)
def test_layers_that_cannot_be_read(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        Eagle3Wiring.of(settings, Path("config.json")).tapped(8, Path("config.json"))


def test_a_head_is_saved_as_it_is_wired(tmp_path: Path) -> None:
    layout = {"taps": 2, LAYERS_KEY: [1, 6], "fc_norm": True, "norm_output": True}
    setting = Setting(tmp_path / "head", **layout)
    save_eagle3_head_again(setting.drafter().head, tmp_path / "again")
    again = load_eagle3_head(tmp_path / "again", torch.float32)
    assert again.wiring == Eagle3Wiring(2, (1, 6), fc_norm=True, norm_output=True)
    assert again.state_dict().keys() == setting.drafter().head.state_dict().keys()


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "+".join(layout) or "published")
def test_its_memory_is_known_before_it_is_loaded(tmp_path: Path, layout: dict[str, Any]) -> None:
    save_small_lm(tmp_path / "target", hidden_size=HIDDEN, num_hidden_layers=8, tie_word_embeddings=False)
    own = {"hidden": HIDDEN, "vocab": 4096, "draft_vocab": DRAFT_VOCAB}
    save_eagle3_head(tmp_path / "head", **own, **layout)
    checkpoint = Checkpoint(tmp_path / "target")
    target = TargetModel(checkpoint, LMHead.load(checkpoint), None, torch.float32)
    drafter = load_drafter((str(tmp_path / "head"),), target)
    assert drafter is not None
    counted = drafter_memory((str(tmp_path / "head"),), checkpoint, torch.float32)
    assert counted.weights == drafter.weight_bytes
    assert counted.row * (100 + SCRATCH_ROWS) == drafter.session_bytes(100)


def test_taps_are_three_layers_in_order() -> None:
    assert eagle3_taps(32) == (2, 16, 29) and eagle3_taps(7) == (2, 3, 4)
    with pytest.raises(BadRequestError, match="7 layers or more; this one has 6"):
        eagle3_taps(6)
    assert [row_width(8, (2, 4, 5), layer) for layer in range(7)] == [8, 8, 8, 16, 16, 24, 32]
    assert check_taps([2, 4], 5) == (2, 4)
    for taps in ([4, 2], [2, 2], [5]):
        with pytest.raises(BadRequestError, match="do not ascend within"):
            check_taps(taps, 5)
