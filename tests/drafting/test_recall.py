"""An EAGLE head that is corrected by its own errors, against the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from flowedge.drafting.drafter import Frontier
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_drafter import SCRATCH_ROWS, HeadDrafter
from flowedge.drafting.heads.recall import BANDWIDTH, RESISTANCE, Recall
from flowedge.models.lm_head import LMHead
from tests.drafting.made_drafters import small_config
from tests.drafting.trees import extend, grow

HIDDEN, VOCAB, ROWS = 16, 20, 12


def by_hand(given: np.ndarray, predicted: np.ndarray, row: np.ndarray, known: int, window: int) -> np.ndarray:
    """A prediction corrected by the latest errors of the first `known` rows, one by one."""
    weights, errors = RESISTANCE, np.zeros(HIDDEN)
    for t in range(max(known - window, 0), known):
        cosine = row @ predicted[t] / np.linalg.norm(row) / np.linalg.norm(predicted[t])
        weight = np.exp((cosine - 1) / BANDWIDTH)
        weights += weight
        errors += weight * (given[t + 1] - predicted[t])
    corrected: np.ndarray = row + errors / weights
    return corrected


@pytest.mark.parametrize("window", [1024, 4])
@pytest.mark.parametrize("steps", [(12,), (1,) * 12, (5, 1, 6)], ids=str)
def test_each_row_is_corrected_by_what_was_known_before_it(
    steps: tuple[int, ...], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowedge.drafting.heads.recall.WINDOW", window)
    monkeypatch.setattr("flowedge.drafting.heads.recall.CHUNK", 4)
    rng = np.random.default_rng(0)
    given = rng.standard_normal((ROWS, HIDDEN)).astype(np.float32)
    # Like one another, as a head's predictions are.
    predicted = (1 + 0.3 * rng.standard_normal((ROWS, HIDDEN))).astype(np.float32)
    recall, start = Recall(ROWS, HIDDEN, torch.float32), 0
    recall.extend(0, torch.ones(4, HIDDEN), torch.ones(4, HIDDEN))  # rows that are replaced
    for step in steps:
        rows = slice(start, start + step)
        found = recall.extend(start, torch.from_numpy(given[rows]), torch.from_numpy(predicted[rows]))
        for i, row in enumerate(found):
            expected = by_hand(given, predicted, predicted[start + i], start + i, window)
            np.testing.assert_allclose(row, expected, atol=1e-4)
        start += step
    asked = rng.standard_normal((3, HIDDEN)).astype(np.float32)
    for row, corrected in zip(asked, recall.corrected(torch.from_numpy(asked), ROWS - 1), strict=True):
        np.testing.assert_allclose(corrected, by_hand(given, predicted, row, ROWS - 1, window), atol=1e-4)


def test_a_text_that_comes_again_is_foreseen() -> None:
    """A random head foresees nothing by itself: its proposals come from the text that was shown to it."""
    torch.manual_seed(0)
    config = small_config(hidden_size=HIDDEN, num_attention_heads=2, vocab_size=VOCAB)
    weight = torch.randn(VOCAB, HIDDEN)
    head = EagleHead(config, fc_bias=True).eval()
    lm_head, embedding = LMHead(nn.Parameter(weight, requires_grad=False), "w"), nn.Embedding(VOCAB, HIDDEN)
    phrase = np.random.default_rng(1).permutation(VOCAB)[:8]
    tokens = np.concatenate([phrase] * 4)
    features = 3 * weight.numpy()[tokens[1:]]  # the state of a token is what gives the next one
    hits = {}
    for recalls in (False, True):
        drafter = HeadDrafter(head, lm_head, embedding, recalls=recalls)
        drafter.open("s", len(tokens), int(tokens[0]))
        hits[recalls] = 0
        for known in range(16, len(tokens) - 1):
            start = 0 if known == 16 else known - 1
            extend(drafter, "s", features[start:known], tokens[start + 1 : known + 1])
            layer = grow(drafter, "s", known, Frontier([0], [-1], [int(tokens[known])]), 1)
            hits[recalls] += int(layer.tokens[0, 0] == tokens[known + 1])
    assert hits[True] == 15 > hits[False] + 5
    plain = HeadDrafter(head, lm_head, embedding)
    assert drafter.session_bytes(10) - plain.session_bytes(10) == 3 * (10 + SCRATCH_ROWS) * HIDDEN * 4
    assert drafter.fingerprint != plain.fingerprint
