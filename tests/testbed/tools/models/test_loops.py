"""Training against loops makes the repeated tokens of the model's own answers less likely."""

from __future__ import annotations

from itertools import repeat

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from flowedge.training.self_generation import is_looping
from testbed.tools.models.loops import REPEATED, LoopTraining, OwnAnswers, repeated, unlikelihood
from testbed.tools.models.replicas import Replicas

SETTINGS = LoopTraining(weight=2.0, prompts=4, new_tokens=60, rows=4)


def tiny_model() -> LlamaForCausalLM:
    """A model of random weights, which ends in a loop soon."""
    torch.manual_seed(3)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def test_a_run_that_occurred_before_is_marked_as_a_whole() -> None:
    run = list(range(16))
    assert repeated([*run, 99, *run, 98]) == [*[False] * 17, *[True] * 16, False]
    assert not any(repeated([*run, 99, *run[:15], 98]))


def test_the_marked_tokens_become_less_likely_with_a_weight_that_falls_with_the_share() -> None:
    replicas = Replicas(tiny_model(), 1, unlikelihood)
    own = OwnAnswers(replicas, repeat([[1, 5, 6], [1, 7, 8]]), SETTINGS)
    own.renew()
    assert own.share == 1.0  # as a model of random weights does
    ((batch, weight),) = own.batch()
    assert batch.shape[:2] == (2, 2) and weight == 2.0
    answer = batch[0, 0, 3:].tolist()
    assert is_looping(answer)
    assert (batch[1, 0, 3:] == REPEATED).tolist() == repeated(answer)
    own.share = 0.25
    assert own.batch()[0][1] == 0.5
    before = unlikelihood(replicas.module, batch)
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(replicas.module.parameters(), lr=1.0)]
    for _ in range(3):
        replicas.step([batch], optimizers, 1.0)
    assert unlikelihood(replicas.module, batch) < before


def test_a_batch_is_added_with_its_weight() -> None:
    """Once with weight 2 is twice the gradient: here a plain step of the same rate goes twice as far."""
    batch = torch.ones((2, 1, 20), dtype=torch.int64).mul_(2)
    once, twice = Replicas(tiny_model(), 1, unlikelihood), Replicas(tiny_model(), 1, unlikelihood)
    for replicas, weight in ((once, 1e-3), (twice, 2e-3)):  # small, so that no gradient is clipped
        sgd: list[torch.optim.Optimizer] = [torch.optim.SGD(replicas.module.parameters(), lr=1.0)]
        assert replicas.step([], sgd, 1.0, [(batch, weight)]) == 0
    start = tiny_model().lm_head.weight
    moved = [replicas.module.lm_head.weight - start for replicas in (once, twice)]
    torch.testing.assert_close(moved[0] * 2, moved[1])
    assert moved[0].abs().max() > 0


def test_nothing_is_trained_where_nothing_loops() -> None:
    assert OwnAnswers(Replicas(tiny_model(), 1, unlikelihood), repeat([]), SETTINGS).batch() == []
