"""Block heads against their definition, in each published layout; and heads that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flowedge.core.errors import CheckpointError
from flowedge.drafting.block.block_drafter import BlockDrafter
from flowedge.drafting.block.block_head import load_block_head
from flowedge.drafting.block.block_head import save_block_head as save_block_head_again
from flowedge.drafting.block.block_settings import BlockWiring, is_block_config
from flowedge.drafting.choice import kind_of_checkpoint
from flowedge.drafting.drafter import DraftPrefix, Frontier, GrowRequest
from flowedge.drafting.drafter_memory import drafter_memory
from flowedge.drafting.joined import JoinedDrafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.drafting.lookup.ngram import NGramDrafter
from flowedge.drafting.model_drafter import TrueSpan
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.lm_head import LMHead
from flowedge.text.json_object import read_json_object
from tests.drafting.block_files import SIZE, TAPS, PlainBlocks, save_block_head
from tests.drafting.trees import children, extend, grow, grow_and_check
from tests.models.conftest import edit_config
from tests.models.tiny_families import make_tiny

HIDDEN, VOCAB = 32, 60
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("dflash", {}),
    ("jetspec", {"windows": True}),
    ("dspark", {}),
    ("dflash", {"windows": True, "layers": 3}),
    ("speculators-dflash", {"draft_vocab": 25}),
    ("speculators-dflash", {"windows": True, "sliding_window_non_causal": True}),
    ("speculators-dspark", {"sample_from_anchor": True}),
]


class Setting:
    """A random head, and the rows and tokens of one text."""

    def __init__(self, directory: Path, kind: str = "dflash", rows: int = 40, **layout: Any) -> None:
        save_block_head(directory, kind, hidden=HIDDEN, vocab=VOCAB, **layout)
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCAB, HIDDEN).requires_grad_(False)
        self.lm_head = nn.Parameter(torch.randn(VOCAB, HIDDEN), requires_grad=False)
        self.plain = PlainBlocks(directory, self.embedding.weight, self.lm_head)
        rng = np.random.default_rng(0)
        self.rows = rng.standard_normal((rows, (1 + len(TAPS)) * HIDDEN)).astype(np.float32)
        self.next_tokens = rng.integers(0, VOCAB, rows)
        self._head = load_block_head(directory, torch.float32)

    def drafter(self) -> BlockDrafter:
        embedding = self._head.embed_tokens or self.embedding
        drafter = BlockDrafter(self._head, LMHead(self.lm_head, "lm_head.weight"), embedding, TAPS)
        drafter.open("s", len(self.rows), 0)
        return drafter

    def extend(self, drafter: BlockDrafter, start: int, stop: int, session: str = "s") -> None:
        extend(drafter, session, self.rows[start:stop], self.next_tokens[start:stop])

    @torch.inference_mode()
    def check_below(self, rows: int, path: list[int], tokens: np.ndarray, log_probs: np.ndarray) -> None:
        """`path` is a chain of draft tokens below the root, after so many true rows."""
        if len(path) >= self.plain.depths:
            assert not len(tokens), "nothing is proposed beyond the block"
            return
        tapped = torch.from_numpy(self.rows[:rows, HIDDEN:])
        expected = torch.full((VOCAB,), -torch.inf)
        found = self.plain.log_probs(tapped, int(self.next_tokens[rows - 1]), path)
        expected[self.plain.target_ids] = found
        np.testing.assert_allclose(log_probs, expected[tokens].numpy(), atol=1e-4)
        np.testing.assert_allclose(log_probs, expected.topk(len(tokens)).values.numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "layout"), LAYOUTS, ids=lambda each: each if isinstance(each, str) else "+".join(each)
)
def test_growth_equals_the_plain_head(tmp_path: Path, kind: str, layout: dict[str, Any]) -> None:
    setting = Setting(tmp_path, kind, **layout)
    drafter = setting.drafter()
    rows = 0
    for growth, step in enumerate((7, 1, 12)):
        setting.extend(drafter, rows, rows + step)
        rows += step
        root = int(setting.next_tokens[rows - 1])
        grow_and_check(
            drafter,
            growth,
            SIZE + 1,
            lambda *given, rows=rows: setting.check_below(rows, *given),
            vocab=VOCAB,
            root=root,
        )


def test_rewound_rows_and_copied_rows(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "jetspec")
    drafter = setting.drafter()
    setting.extend(drafter, 0, 9)
    grow(drafter, "s", 1, Frontier([0], [-1], [0]), 3)
    drafter.rewind("s", 4)
    setting.extend(drafter, 4, 6)
    grow_and_check(drafter, 2, 3, lambda *given: setting.check_below(6, *given), vocab=VOCAB)
    drafter.keep("s")
    drafter.open("t", 20, 0, prefix=DraftPrefix("s", 5))
    setting.extend(drafter, 5, 6, "t")
    drafter.close("s")
    tokens, log_probs = children(grow(drafter, "t", 0, Frontier([0], [-1], [0]), 4), 0)
    setting.check_below(6, [], tokens, log_probs)


def test_blocks_of_several_sessions_are_those_of_each(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "dflash", windows=True)
    drafter = setting.drafter()
    drafter.open("t", 30, 0)
    setting.extend(drafter, 0, 9)
    setting.extend(drafter, 0, 4, "t")
    root = Frontier([0], [-1], [0])
    layers = drafter.grow([GrowRequest("s", 1, root, 4), GrowRequest("t", 1, root, 4)])
    for rows, layer in zip((9, 4), layers, strict=True):
        setting.check_below(rows, [], *children(layer, 0))


def test_lookup_joins_and_learns_from_what_the_block_predicted(tmp_path: Path) -> None:
    """The states of true rows are those of the block that predicted the tokens after them."""
    setting = Setting(tmp_path)
    drafter = setting.drafter()
    joined = JoinedDrafter([drafter], NGramDrafter(), VOCAB)
    joined.open("j", 30, 0)
    extend(joined, "j", setting.rows[:9], setting.next_tokens[:9])
    grow(joined, "j", 1, Frontier([0], [-1], [0]), 4)
    extend(joined, "j", setting.rows[9:12], setting.next_tokens[9:12])
    (found,) = drafter.predict_true([TrueSpan("j", 9, 12)])
    tapped = torch.from_numpy(setting.rows[:9, HIDDEN:])
    for depth, logits in enumerate(found.logits, start=1):  # the block's first token led to these rows' first
        expected = setting.plain.log_probs(tapped, int(setting.next_tokens[8]), [0] * depth)
        torch.testing.assert_close(logits.log_softmax(-1), expected, atol=1e-4, rtol=0)
    grow(joined, "j", 2, Frontier([0], [-1], [0]), 4)


@pytest.mark.parametrize("kind", ["dflash", "jetspec", "dspark"])
def test_what_is_saved_is_what_was_loaded(tmp_path: Path, kind: str) -> None:
    save_block_head(tmp_path / "one", kind, hidden=HIDDEN, vocab=VOCAB)
    head = load_block_head(tmp_path / "one", torch.float32)
    save_block_head_again(head, tmp_path / "two")
    again = load_block_head(tmp_path / "two", torch.float32)
    assert again.wiring == head.wiring
    for name, tensor in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert kind_of_checkpoint(tmp_path / "two") == "block"


def test_memory_counts_what_is_loaded(tmp_path: Path) -> None:
    make_tiny(tmp_path / "target", "qwen3", vocab_size=VOCAB, hidden_size=HIDDEN)
    checkpoint = Checkpoint(tmp_path / "target")
    for kind in ("dflash", "dspark"):
        head = save_block_head(tmp_path / kind, kind, hidden=HIDDEN, vocab=VOCAB)
        target = TargetModel(checkpoint, LMHead.load(checkpoint), None, torch.float32)
        drafter = load_drafter((str(head),), target)
        assert isinstance(drafter, BlockDrafter) and drafter.taps == TAPS
        memory = drafter_memory((str(head),), checkpoint, torch.float32)
        assert memory.weights == drafter.weight_bytes
        assert memory.row == drafter.session_bytes(1) - drafter.session_bytes(0)


@pytest.mark.parametrize(
    ("said", "kind", "changes"),
    [
        ("architectures is .*known", "dflash", {"architectures": ["DFlash2DraftModel"]}),
        ("target_layer_ids is None", "dflash", {"dflash_config": {"mask_token_id": 3}}),
        ("block_size is 1", "dflash", {"block_size": 1}),
        ("mask token 60 is not within", "dspark", {"mask_token_id": VOCAB}),
        ("markov_head_type to 'rnn'", "dspark", {"markov_head_type": "rnn"}),
        ("layer_types is", "dflash", {"layer_types": ["chunked_attention"] * 2}),
        ("target_hidden_size to 64", "jetspec", {"target_hidden_size": 64}),
        ("2 is missing|layers.2", "dflash", {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}),
    ],
)
def test_heads_that_ask_for_what_is_not_computed(
    tmp_path: Path, said: str, kind: str, changes: dict[str, Any]
) -> None:
    save_block_head(tmp_path, kind, hidden=HIDDEN, vocab=VOCAB)
    edit_config(tmp_path, **changes)
    assert is_block_config(read_json_object(tmp_path / "config.json"))
    with pytest.raises(CheckpointError, match=said):
        load_block_head(tmp_path, torch.float32)


def test_taps_that_the_target_has_not(tmp_path: Path) -> None:
    save_block_head(tmp_path, hidden=HIDDEN, vocab=VOCAB)
    path = tmp_path / "config.json"
    wiring = BlockWiring.of(read_json_object(path), path)
    assert wiring.tapped(4, path) == TAPS
    with pytest.raises(CheckpointError, match=r"target_layer_ids \+ 1: taps \[1, 3\]"):
        wiring.tapped(3, path)
