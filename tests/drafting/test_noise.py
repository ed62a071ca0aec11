"""Every drafter ranks a node's children by the noise of the position after the path to the node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter, Frontier
from flowedge.drafting.heads.eagle3_head import load_eagle3_head
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.lm import LMDrafter
from flowedge.drafting.ngram import NGramDrafter
from flowedge.drafting.ranking import best_drawn_of
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead
from flowedge.models.taps import eagle3_taps
from tests.drafting.eagle3_files import save_eagle3_head
from tests.drafting.trees import children, extend, grow, grow_and_check

VOCAB, HIDDEN, ROWS, CAPACITY = 60, 32, 24, 40
SAMPLING = SamplingParams(temperature=0.8, seed=21)

SmallLM = Callable[..., Path]


def lm(directory: Path, small_lm: SmallLM) -> Drafter:
    checkpoint = Checkpoint(small_lm(vocab_size=VOCAB))
    return LMDrafter(LanguageModel(LayerBlock.load(checkpoint, 0, 2), LMHead.load(checkpoint), VOCAB, ""))


def lm_head() -> LMHead:
    return LMHead(nn.Parameter(torch.randn(VOCAB, HIDDEN), requires_grad=False), "lm_head.weight")


def eagle(directory: Path, small_lm: SmallLM) -> Drafter:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, vocab_size=VOCAB
    )
    return HeadDrafter(EagleHead(config, fc_bias=True).eval(), lm_head(), nn.Embedding(VOCAB, HIDDEN))


def eagle3(directory: Path, small_lm: SmallLM) -> Drafter:
    torch.manual_seed(0)
    save_eagle3_head(directory, hidden=HIDDEN, vocab=VOCAB, draft_vocab=25)
    head = load_eagle3_head(directory, torch.float32)
    return HeadDrafter(head, lm_head(), nn.Embedding(VOCAB, HIDDEN), eagle3_taps(8))


def ngram(directory: Path, small_lm: SmallLM) -> Drafter:
    return NGramDrafter()


KINDS = {"lm": lm, "eagle": eagle, "eagle3": eagle3, "ngram": ngram}


class Text:
    """Tokens that repeat, with the features of the target."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        self.tokens = rng.integers(0, 4, ROWS + 1)
        self.features = rng.standard_normal((ROWS, 4 * HIDDEN)).astype(np.float32)

    def open(self, drafter: Drafter, session: str, noise: SamplingParams | None) -> None:
        drafter.open(session, CAPACITY, int(self.tokens[0]), noise)

    def extend(self, drafter: Drafter, session: str, rows: range) -> None:
        features = self.features[rows.start : rows.stop]
        extend(drafter, session, features, self.tokens[rows.start + 1 : rows.stop + 1])


def below(drafter: Drafter, growth: int, path: list[int]) -> list[tuple[int, float]]:
    """Return all children, ranked without noise, of the last node of a chain below the root."""
    layer = grow(drafter, "plain", growth, Frontier([0], [-1], [0]), VOCAB)
    for name, token in enumerate(path, start=1):
        layer = grow(drafter, "plain", growth, Frontier([name], [name - 1], [token]), VOCAB)
    tokens, log_probs = children(layer, 0)
    return list(zip(tokens.tolist(), log_probs.tolist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_children_are_those_of_the_noise_at_the_next_position(
    kind: str, tmp_path: Path, small_lm: SmallLM
) -> None:
    """Each node of grown trees against a chain of its own, in a session without noise."""
    torch.set_num_threads(1)
    drafter, text = KINDS[kind](tmp_path, small_lm), Text()
    text.open(drafter, "plain", None)
    text.open(drafter, "s", SAMPLING)
    known, chains = 0, iter(range(10_000))
    differing = 0
    for growth, step in enumerate((7, 1, 12)):
        for session in ("plain", "s"):
            text.extend(drafter, session, range(known, known + step))
        known += step

        def check(path: list[int], tokens: np.ndarray, log_probs: np.ndarray, known: int = known) -> None:
            nonlocal differing
            plain = below(drafter, next(chains), path)
            expected = best_drawn_of(plain, 4, SAMPLING, 1 + known + len(path))
            assert tokens.tolist() == [token for token, _ in expected]
            np.testing.assert_allclose(log_probs, [score for _, score in expected], atol=1e-3)
            differing += tokens.tolist() != [token for token, _ in plain[:4]]

        grow_and_check(drafter, growth, 3, check, vocab=VOCAB)
    assert differing, "noise changes what is proposed"
