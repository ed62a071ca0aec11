"""The small model's incremental cache gives what transformers' own model gives on the whole path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from flowedge.drafting.drafter import Frontier
from flowedge.drafting.lm import SCRATCH_ROWS, LMDrafter
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead
from flowedge.models.session_rows import SessionRows
from tests.drafting.trees import extend, grow, grow_and_check

VOCAB = 60
TARGET_VOCAB = 56  # the model's vocabulary is padded


class Setting:
    """A drafter, the same model in transformers, and one text."""

    def __init__(self, directory: Path, seed: int = 0, rows: int = 60) -> None:
        torch.set_num_threads(1)
        checkpoint = Checkpoint(directory)
        layers = checkpoint.config.num_hidden_layers
        self.block = LayerBlock.load(checkpoint, 0, layers)
        head = LMHead.load(checkpoint)
        self.drafter = LMDrafter(LanguageModel(self.block, head, TARGET_VOCAB, checkpoint.fingerprint))
        self.plain = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.tokens = np.random.default_rng(seed).integers(0, TARGET_VOCAB, rows)
        self.rows = 0
        self.computed: list[int] = []  # rows of each forward

    def open(self, capacity: int = 50) -> None:
        self.drafter.open("s", capacity, int(self.tokens[0]))

    @classmethod
    def opened(cls, directory: Path, rows: int, capacity: int = 50) -> Setting:
        """A setting whose session has so many true rows."""
        setting = cls(directory)
        setting.open(capacity)
        setting.extend(rows)
        return setting

    def extend(self, count: int) -> None:
        given = self.tokens[self.rows + 1 : self.rows + 1 + count]
        extend(self.drafter, "s", None, given)
        self.rows += count

    def check(self, path: list[int], tokens: np.ndarray, log_probs: np.ndarray) -> None:
        wanted = self.log_probs(path)
        np.testing.assert_allclose(log_probs, wanted[tokens].numpy(), atol=1e-4)
        np.testing.assert_allclose(log_probs, torch.topk(wanted, len(tokens)).values.numpy(), atol=1e-4)

    @torch.inference_mode()
    def log_probs(self, path: list[int]) -> torch.Tensor:
        ids = torch.tensor([[*self.tokens[: self.rows + 1].tolist(), *path]])
        logits = self.plain(input_ids=ids).logits[0, -1, :TARGET_VOCAB]
        return torch.log_softmax(logits.float(), dim=-1)

    def grow(self, growth: int, layers: int, **sizes: int) -> dict[int, list[int]]:
        return grow_and_check(self.drafter, growth, layers, self.check, vocab=TARGET_VOCAB, **sizes)

    def count_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        forward = self.block.forward_together

        def counted(parts: Sequence[SessionRows], *rest: object) -> list[torch.Tensor] | None:
            self.computed += [part.count for part in parts]
            return forward(parts, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(self.block, "forward_together", counted)


@pytest.fixture(scope="module")
def directory(small_lm: Callable[..., Path]) -> Path:
    return small_lm(vocab_size=VOCAB)


@pytest.mark.parametrize("seed", range(3))
def test_every_layer_equals_the_plain_model(directory: Path, seed: int) -> None:
    setting = Setting(directory, seed)
    setting.open()
    for growth, step in enumerate((7, 1, 3, 12)):
        setting.extend(step)
        setting.grow(growth, layers=4)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_rows_of_an_accepted_branch_are_not_computed_again(
    directory: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting.opened(directory, 9)
    setting.count_rows(monkeypatch)
    paths = setting.grow(1, layers=4)
    assert setting.computed == [3, 3, 3], "the root's row is there, and each layer takes one forward"
    branch = max(paths.values(), key=len)
    assert len(branch) == 3
    setting.tokens[10 : 10 + kept] = branch[:kept]
    setting.computed.clear()
    setting.extend(kept)
    assert setting.computed == []
    setting.grow(2, layers=3)
    setting.tokens[10 + kept] = 55
    setting.extend(1)
    setting.grow(3, layers=3)


def test_a_branch_that_is_left_half_way_is_computed_from_there(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting.opened(directory, 5)
    paths = setting.grow(1, layers=3)
    setting.count_rows(monkeypatch)
    branch = max(paths.values(), key=len)
    setting.tokens[6 : 6 + len(branch)] = branch
    setting.extend(len(branch) + 2)
    assert setting.computed == [2]
    setting.grow(2, layers=3)


def test_going_back_and_on_again(directory: Path) -> None:
    setting = Setting.opened(directory, 20)
    setting.grow(1, layers=3)
    setting.drafter.rewind("s", 12)
    setting.rows = 12
    with pytest.raises(ValueError, match="no true row"):
        grow(setting.drafter, "s", 2, Frontier([0], [-1], [0]), 3)
    setting.tokens[13:] = setting.tokens[13:][::-1].copy()
    setting.extend(6)
    setting.grow(3, layers=4)
    setting.drafter.rewind("s", 0)
    setting.rows = 0
    setting.extend(4)
    setting.grow(4, layers=2)
    with pytest.raises(ValueError, match="4 true rows and cannot go back to 5"):
        setting.drafter.rewind("s", 5)


def test_a_node_that_is_asked_for_again_costs_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting.opened(directory, 5)
    grow(setting.drafter, "s", 1, Frontier([0], [-1], [0]), 3)
    first = grow(setting.drafter, "s", 1, Frontier([1, 2], [0, 0], [7, 8]), 3)
    setting.count_rows(monkeypatch)
    again = grow(setting.drafter, "s", 1, Frontier([2, 3], [0, 0], [8, 9]), 3)
    assert setting.computed == [1]
    assert first.tokens[1].tolist() == again.tokens[0].tolist()
    setting.check([9], again.tokens[1], again.log_probs[1])


def test_a_growth_larger_than_the_scratch_is_still_right(directory: Path) -> None:
    setting = Setting.opened(directory, 6, capacity=6)
    setting.grow(1, layers=(SCRATCH_ROWS + 40) // 50 + 2, frontier=50, width=3)


def test_a_token_the_model_does_not_have_ends_nothing(directory: Path) -> None:
    setting = Setting.opened(directory, 0)
    extend(setting.drafter, "s", None, np.array([3, VOCAB + 5]))
    layer = grow(setting.drafter, "s", 1, Frontier([0], [-1], [0]), TARGET_VOCAB + 9)
    assert layer.tokens.shape == (1, TARGET_VOCAB), "nothing beyond the target's vocabulary is proposed"
    setting.drafter.close("s")
    setting.drafter.close("s")


def test_memory_is_accounted_for(directory: Path, small_lm: Callable[..., Path]) -> None:
    setting = Setting(directory)
    drafter, config = setting.drafter, setting.plain.config
    row = 2 * 2 * config.num_key_value_heads * config.head_dim * 4
    hidden_states = (101 + SCRATCH_ROWS) * config.hidden_size * 4
    assert drafter.session_bytes(100) == row * (101 + SCRATCH_ROWS) + hidden_states
    layers = sum(
        p.numel() for name, p in Setting(directory).plain.named_parameters() if "lm_head" not in name
    )
    assert drafter.weight_bytes == 4 * layers, "the head is the embedding"
