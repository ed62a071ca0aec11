"""The steps of an EAGLE-3 head on its own output, against its definition, and its draft vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from flowedge.drafting.heads.eagle3_head import load_eagle3_head
from flowedge.training.documents import TrainingText
from flowedge.training.heads.eagle3_training import draft_vocabulary
from flowedge.training.heads.head_kinds import new_head
from flowedge.training.heads.unrolled import step_weights, unrolled
from tests.drafting.eagle3_files import PlainEagle3, save_eagle3_head

HIDDEN, VOCAB, ROWS, STEPS = 32, 60, 4, 3


@torch.no_grad()
def test_every_step_is_that_of_the_plain_head_on_a_branch(tmp_path: Path) -> None:
    save_eagle3_head(tmp_path, hidden=HIDDEN, vocab=VOCAB, draft_vocab=25)
    plain, head = PlainEagle3(tmp_path), load_eagle3_head(tmp_path, torch.float32)
    torch.manual_seed(1)
    embedded = nn.Embedding(VOCAB, HIDDEN)(torch.randint(VOCAB, (2, ROWS + STEPS - 1)))
    fused = head.fc(torch.randn(2, ROWS, 3 * HIDDEN))
    outputs = list(unrolled(head, embedded, fused, STEPS))
    assert len(outputs) == STEPS
    for text in range(2):
        for row in range(ROWS):
            before = fused[text, : row + 1]
            for step in range(STEPS):
                branch = plain.states(embedded[text, : row + 1 + step], before)
                torch.testing.assert_close(outputs[step][text, row], branch[-1], rtol=1e-4, atol=1e-4)
                before = torch.cat((before, branch[-1:]))


@torch.no_grad()
def test_steps_of_an_eagle_head_are_forwards_over_a_branch() -> None:
    torch.manual_seed(2)
    head = new_head(LlamaConfig(hidden_size=HIDDEN, intermediate_size=48, vocab_size=VOCAB))
    embedded, features = torch.randn(2, ROWS + STEPS - 1, HIDDEN), torch.randn(2, ROWS, HIDDEN)
    outputs = list(unrolled(head, embedded, features, STEPS))
    for row in range(ROWS):
        branch = features[:, : row + 1]
        for step, output in enumerate(outputs):
            positions = torch.arange(row + 1 + step)[None]
            expected = head(embedded[:, : row + 1 + step], branch, positions, None, None)[:, -1:]
            torch.testing.assert_close(output[:, row : row + 1], expected, rtol=1e-4, atol=1e-5)
            branch = torch.cat((branch, expected), dim=1)


def test_the_weights_of_steps_fall_and_add_up_to_one() -> None:
    assert step_weights(1) == [1.0]
    assert sum(step_weights(3)) == pytest.approx(1.0)
    assert step_weights(3)[2] == pytest.approx(0.64 * step_weights(3)[0])


def test_the_draft_vocabulary_is_what_the_assistant_writes_most() -> None:
    tokens = np.array([1, 1, 1, 1, 9, 9, 9, 4, 4, 7], dtype=np.int32)
    document = TrainingText(tokens, np.arange(len(tokens)) >= 4)
    assert draft_vocabulary([document, document], vocab=12, size=2).tolist() == [4, 9]
    assert draft_vocabulary([document], vocab=12, size=12).tolist() == list(range(12))
