"""The EAGLE-3 head against its definition, grown, extended and rewound; and heads that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.drafting.drafter import Frontier
from flowedge.drafting.heads.eagle3_head import load_eagle3_head
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.models.lm_head import LMHead
from flowedge.models.taps import check_taps, eagle3_taps, row_width
from tests.drafting.eagle3_files import PlainEagle3, save_eagle3_head
from tests.drafting.trees import extend, grow, grow_and_check
from tests.models.conftest import edit_config, edit_tensors

HIDDEN, VOCAB, DRAFT_VOCAB = 32, 60, 25


class Setting:
    """A random head, and the rows and tokens of one text."""

    def __init__(self, directory: Path, seed: int = 0, rows: int = 40) -> None:
        save_eagle3_head(directory, hidden=HIDDEN, vocab=VOCAB, draft_vocab=DRAFT_VOCAB, seed=seed)
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(VOCAB, HIDDEN).requires_grad_(False)
        self.plain = PlainEagle3(directory)
        rng = np.random.default_rng(seed)
        self.rows = rng.standard_normal((rows, 4 * HIDDEN)).astype(np.float32)
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


@pytest.mark.parametrize("seed", range(2))
def test_growth_equals_the_plain_head(tmp_path: Path, seed: int) -> None:
    setting = Setting(tmp_path, seed)
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
    assert head.target_ids(np.arange(VOCAB)).tolist() == list(range(VOCAB))


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
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}, "eagle_config"),
        ({"norm_before_residual": True}, "norm_before_residual"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, settings: dict[str, object], said: str) -> None:
    save_eagle3_head(tmp_path, hidden=HIDDEN, vocab=VOCAB, draft_vocab=DRAFT_VOCAB)
    edit_config(tmp_path, **settings)
    with pytest.raises(CheckpointError, match=said):
        load_eagle3_head(tmp_path, torch.float32)


def test_taps_are_three_layers_in_order() -> None:
    assert eagle3_taps(32) == (2, 16, 29) and eagle3_taps(7) == (2, 3, 4)
    with pytest.raises(BadRequestError, match="7 layers or more; this one has 6"):
        eagle3_taps(6)
    assert [row_width(8, (2, 4, 5), layer) for layer in range(7)] == [8, 8, 8, 16, 16, 24, 32]
    assert check_taps([2, 4], 5) == (2, 4)
    for taps in ([4, 2], [2, 2], [5]):
        with pytest.raises(BadRequestError, match="do not ascend within"):
            check_taps(taps, 5)
