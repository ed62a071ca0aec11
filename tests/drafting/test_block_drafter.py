"""Block heads against their definition, in each published layout; and heads that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flowedge.core.errors import CheckpointError
from flowedge.core.pipeline_config import DraftQuant
from flowedge.drafting.block.block_drafter import BlockDrafter
from flowedge.drafting.block.block_head import load_block_head
from flowedge.drafting.block.block_head import save_block_head as save_block_head_again
from flowedge.drafting.block.block_settings import BlockWiring, is_block_config
from flowedge.drafting.choice import kind_of_checkpoint
from flowedge.drafting.draft_vocabulary import DraftVocabulary
from flowedge.drafting.drafter import Drafter, DraftPrefix, Frontier, GrowRequest
from flowedge.drafting.drafter_format import DrafterFormat
from flowedge.drafting.drafter_memory import drafter_memory
from flowedge.drafting.joined import JoinedDrafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.drafting.lookup.ngram import NGramDrafter
from flowedge.drafting.model_drafter import TrueSpan
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.lm_head import LMHead
from flowedge.models.taps import eagle3_taps
from flowedge.text.json_object import read_json_object
from tests.drafting.block_files import TAPS, PlainBlocks, save_block_head
from tests.drafting.parallel_files import PlainParallel, save_parallel_head
from tests.drafting.trees import children, extend, grow, grow_and_check
from tests.models.conftest import edit_tensors
from tests.models.tiny_families import make_tiny

HIDDEN, VOCAB = 32, 60
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("dflash2", {}),
    ("dflash2", {"windows": True, "is_causal": False, "input_embedding_scale": 2.5}),
    ("speculators-dflash2", {"windows": True, "layers": 3}),
    ("peagle", {}),
    ("peagle", {"mask_name": "pard_token", "fc_norm": True, "norm_before_residual": True}),
    ("peagle", {"mask_name": "mask_token_id", "norm_output": True, "norm_before_fc": True, "layers": 1}),
    ("speculators-peagle", {"windows": True, "query_key_norms": True, "draft_vocab": VOCAB}),
    ("dflash", {}),
    ("jetspec", {"windows": True}),
    ("jetspec", {"pass_depths": 1}),
    ("jetspec", {"pass_depths": 2, "windows": True}),
    ("jetspec", {"pass_depths": 3}),
    ("dspark", {}),
    ("dflash", {"windows": True, "layers": 3}),
    ("speculators-dflash", {"draft_vocab": 25}),
    ("speculators-dflash", {"windows": True, "sliding_window_non_causal": True}),
    ("speculators-dspark", {"sample_from_anchor": True}),
]


def save_head(directory: Path, kind: str, **layout: Any) -> Path:
    """Save a head of a kind; "speculators-" before it is its layout."""
    if kind.endswith("peagle"):
        spoken = kind.startswith("speculators-")
        return save_parallel_head(directory, hidden=HIDDEN, vocab=VOCAB, speculators=spoken, **layout)
    return save_block_head(directory, kind, hidden=HIDDEN, vocab=VOCAB, **layout)


class Setting:
    """A random head, and the rows and tokens of one text."""

    def __init__(self, directory: Path, kind: str = "dflash", rows: int = 40, **layout: Any) -> None:
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCAB, HIDDEN).requires_grad_(False)
        self.lm_head = nn.Parameter(torch.randn(VOCAB, HIDDEN), requires_grad=False)
        save_head(directory, kind, **layout)
        self.plain = (
            PlainParallel(directory)
            if kind.endswith("peagle")
            else PlainBlocks(directory, self.embedding.weight, self.lm_head)
        )
        rng = np.random.default_rng(0)
        self.rows = rng.standard_normal((rows, (1 + len(TAPS)) * HIDDEN)).astype(np.float32)
        self.next_tokens = rng.integers(0, VOCAB, rows)
        self._head = load_block_head(directory, torch.float32)

    def drafter(self, proposals: ProposalHead | None = None) -> BlockDrafter:
        embedding = self._head.embed_tokens or self.embedding
        lm_head = LMHead(self.lm_head, "lm_head.weight")
        drafter = BlockDrafter(self._head, lm_head, embedding, TAPS, proposals)
        drafter.open("s", len(self.rows), 0)
        return drafter

    def extend(self, drafter: BlockDrafter, start: int, stop: int, session: str = "s") -> None:
        extend(drafter, session, self.rows[start:stop], self.next_tokens[start:stop])

    def log_probs(self, rows: int, path: list[int]) -> torch.Tensor:
        """By definition, below a chain of draft tokens behind so many true rows."""
        plain, tapped = self.plain, torch.from_numpy(self.rows[:rows, HIDDEN:])
        below = plain.log_probs_below if isinstance(plain, PlainParallel) else plain.log_probs
        return below(tapped, self.next_tokens[:rows].tolist(), path)

    @torch.inference_mode()
    def check_below(self, rows: int, path: list[int], tokens: np.ndarray, log_probs: np.ndarray) -> None:
        """`path` is a chain of draft tokens below the root, after so many true rows."""
        if len(path) >= self.plain.depths:
            assert not len(tokens), "nothing is proposed beyond the block"
            return
        expected = torch.full((VOCAB,), -torch.inf)
        expected[self.plain.target_ids] = self.log_probs(rows, path)
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
            setting.plain.depths + 2,
            lambda *given, rows=rows: setting.check_below(rows, *given),
            vocab=VOCAB,
            root=root,
        )


@pytest.mark.parametrize("kind", ["jetspec", "peagle"])
def test_rewound_rows_and_copied_rows(tmp_path: Path, kind: str) -> None:
    setting = Setting(tmp_path, kind)
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


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "peagle"])
def test_blocks_of_several_sessions_are_those_of_each(tmp_path: Path, kind: str) -> None:
    setting = Setting(tmp_path, kind, windows=True)
    drafter = setting.drafter()
    drafter.open("t", 30, 0)
    setting.extend(drafter, 0, 9)
    setting.extend(drafter, 0, 4, "t")
    roots = {"s": Frontier([0], [-1], [int(setting.next_tokens[8])])}
    roots["t"] = Frontier([0], [-1], [int(setting.next_tokens[3])])
    layers = drafter.grow([GrowRequest(session, 1, root, 4) for session, root in roots.items()])
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
    for depth, logits in enumerate(found.logits, start=1):  # the block's first token led to these rows' first
        expected = setting.log_probs(9, [0] * depth)
        torch.testing.assert_close(logits.log_softmax(-1), expected, atol=1e-4, rtol=0)
    grow(joined, "j", 2, Frontier([0], [-1], [0]), 4)


def test_true_rows_of_p_eagle_keep_what_they_predict(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "peagle")
    drafter = setting.drafter()
    setting.extend(drafter, 0, 9)
    grow(drafter, "s", 1, Frontier([0], [-1], [0]), 4)
    setting.extend(drafter, 9, 12)
    (found,) = drafter.predict_true([TrueSpan("s", 7, 12)])
    for row, logits in enumerate(found.logits, start=7):
        torch.testing.assert_close(logits.log_softmax(-1), setting.log_probs(row + 1, []), atol=1e-4, rtol=0)


def test_selection_in_a_part_of_the_vocabulary(tmp_path: Path) -> None:
    """The part, and the tokens of the text that it lacks."""
    setting = Setting(tmp_path, "dflash2")
    plain, ids = setting.plain, np.arange(5, VOCAB, 3)
    assert isinstance(plain, PlainBlocks)
    part = DraftVocabulary(ids, VOCAB)
    drafter = setting.drafter(ProposalHead(LMHead(setting.lm_head, "lm_head.weight"), part))
    setting.extend(drafter, 0, 9)
    plain.target_ids = torch.from_numpy(np.union1d(ids, setting.next_tokens[:9]))
    plain.lm_head = setting.lm_head[plain.target_ids]
    root = int(setting.next_tokens[8])
    grow_and_check(drafter, 1, 4, lambda *given: setting.check_below(9, *given), vocab=VOCAB, root=root)


@pytest.mark.parametrize("kind", ["dflash", "jetspec", "dspark"])
def test_what_is_saved_is_what_was_loaded(tmp_path: Path, kind: str) -> None:
    save_block_head(tmp_path / "one", kind, hidden=HIDDEN, vocab=VOCAB)
    head = load_block_head(tmp_path / "one", torch.float32)
    save_block_head_again(head, tmp_path / "two")
    again = load_block_head(tmp_path / "two", torch.float32)
    assert again.blocks == head.blocks
    for name, tensor in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert kind_of_checkpoint(tmp_path / "two") == "block"


@pytest.mark.parametrize("quant", ["none", "int8"])
@pytest.mark.parametrize("kind", ["dflash", "dspark", "dflash2", "peagle"])
def test_memory_counts_what_is_loaded(tmp_path: Path, kind: str, quant: DraftQuant) -> None:
    make_tiny(tmp_path / "target", "qwen3", vocab_size=VOCAB, hidden_size=HIDDEN)
    checkpoint, form = Checkpoint(tmp_path / "target"), DrafterFormat(quant)
    head = save_head(tmp_path / kind, kind)
    target = TargetModel(checkpoint, LMHead.load(checkpoint), None, torch.float32, form=form)
    drafter = load_drafter((str(head),), target)
    assert isinstance(drafter, BlockDrafter) and drafter.taps == TAPS
    memory = drafter_memory((str(head),), checkpoint, torch.float32, form)
    assert memory.weights == drafter.weight_bytes
    assert memory.row == drafter.session_bytes(1) - drafter.session_bytes(0)


@pytest.mark.parametrize(
    ("said", "kind", "changes"),
    [
        ("architectures is .*known", "dflash", {"architectures": ["DFlash3DraftModel"]}),
        ("conv_kernel_size is None", "dflash", {"architectures": ["DFlash2DraftModel"]}),
        ("selector_rank to 6", "dflash", {"selector_rank": 6}),
        ("conv_kernel_size is 6, but a block has 5 rows", "dflash2", {"conv_kernel_size": 6}),
        ("conv_group_size is 5, which does not divide 32", "dflash2", {"conv_group_size": 5}),
        ("selector_top_k is 0", "dflash2", {"selector_top_k": 0}),
        ("output_multiplier to 0.5", "dflash2", {"output_multiplier": 0.5}),
        ("input_embedding_scale is -1", "dflash2", {"input_embedding_scale": -1}),
        (r"changes \(selector_rank\) over a vocab", "speculators-dflash2", {"draft_vocab_size": 25}),
        ("mask token 60 is not within", "peagle", {"ptd_token_id": VOCAB}),
        ("num_depths is 1, not a number of 2", "peagle", {"num_depths": 1}),
        ("logit_scale to 2", "peagle", {"logit_scale": 2}),
        ("both norm_before_fc and fc_norm", "speculators-peagle", {"norm_before_fc": True, "fc_norm": True}),
        ("mask_token_id is None", "speculators-peagle", {"mask_token_id": None}),
        ("norm_before_residual is missing", "speculators-peagle", {"norm_before_residual": ...}),
        ("layers.3.mlp.down_proj.weight is missing", "peagle", {"num_hidden_layers": 4}),
        ("target_layer_ids is None", "dflash", {"dflash_config": {"mask_token_id": 3}}),
        ("block_size is 1", "dflash", {"block_size": 1}),
        ("mask token 60 is not within", "dspark", {"mask_token_id": VOCAB}),
        ("markov_head_type to 'rnn'", "dspark", {"markov_head_type": "rnn"}),
        ("layer_types is", "dflash", {"layer_types": ["chunked_attention"] * 2}),
        ("target_hidden_size to 64", "jetspec", {"target_hidden_size": 64}),
        ("pass_depths is 5, but a block predicts 4", "jetspec", {"pass_depths": 5}),
        ("pass_depths is 2, but rows of its blocks see later", "dflash", {"pass_depths": 2}),
        ("2 is missing|layers.2", "dflash", {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}),
    ],
)
def test_heads_that_ask_for_what_is_not_computed(
    tmp_path: Path, said: str, kind: str, changes: dict[str, Any]
) -> None:
    """A setting that is changed to ... is left out."""
    save_head(tmp_path, kind)
    path = tmp_path / "config.json"
    config = read_json_object(path)
    within = config.get("dflash_config", {})
    for name, value in changes.items():
        (within if name in within else config)[name] = value
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))
    assert is_block_config(config)
    with pytest.raises(CheckpointError, match=said):
        load_block_head(tmp_path, torch.float32)


def test_a_head_of_p_eagle_that_says_little(tmp_path: Path) -> None:
    save_head(tmp_path, "peagle", draft_vocab=VOCAB)
    path = tmp_path / "config.json"
    config = read_json_object(path)
    for name in ("num_depths", "draft_vocab_size", "eagle_aux_hidden_state_layer_ids"):
        del config[name]
    path.write_text(json.dumps(config))
    assert kind_of_checkpoint(tmp_path) == "block"
    wiring = BlockWiring.of(config, path)
    assert wiring.depths == 8 and wiring.tapped(8, path) == eagle3_taps(8)
    edit_tensors(tmp_path, {"mask_hidden": None})
    with pytest.raises(CheckpointError, match=r"the P-EAGLE head in .* mask_hidden is missing"):
        load_block_head(tmp_path, torch.float32)


def test_what_has_a_mask_token_and_is_no_block_head() -> None:
    small_lm = {"architectures": ["Qwen3ForCausalLM"], "pard_token": 7, "num_hidden_layers": 28}
    assert not is_block_config(small_lm)
    assert not is_block_config({"draft_vocab_size": 25, "mask_token_id": None, "parallel_drafting": False})
    assert is_block_config({"draft_vocab_size": 25, "pard_token": 0})


def test_logits_that_are_bound_as_the_targets_are(tmp_path: Path) -> None:
    head = save_head(tmp_path / "head", "dflash2", final_logit_softcapping=3.0)
    checkpoints = {
        "gemma2": make_tiny(tmp_path / "gemma2", "gemma2", vocab_size=VOCAB, hidden_size=HIDDEN),
        "qwen3": make_tiny(tmp_path / "qwen3", "qwen3", vocab_size=VOCAB, hidden_size=HIDDEN),
    }

    def load(family: str) -> Drafter | None:
        checkpoint = Checkpoint(checkpoints[family])
        target = TargetModel(checkpoint, LMHead.load(checkpoint), None, torch.float32)
        return load_drafter((str(head),), target)

    assert isinstance(load("gemma2"), BlockDrafter)
    with pytest.raises(CheckpointError, match=r"with final_logit_softcapping 3; that of .* is not set"):
        load("qwen3")


def test_taps_that_the_target_has_not(tmp_path: Path) -> None:
    save_block_head(tmp_path, hidden=HIDDEN, vocab=VOCAB)
    path = tmp_path / "config.json"
    wiring = BlockWiring.of(read_json_object(path), path)
    assert wiring.tapped(4, path) == TAPS
    with pytest.raises(CheckpointError, match=r"target_layer_ids \+ 1: taps \[1, 3\]"):
        wiring.tapped(3, path)
