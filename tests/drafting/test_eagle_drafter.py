"""The drafter's incremental cache gives what recomputing everything gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from flowedge.core.errors import CapacityError
from flowedge.drafting.drafter import DraftLayer, Frontier
from flowedge.drafting.heads.draft_head import KeyValueViews
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_drafter import SCRATCH_ROWS, HeadDrafter
from flowedge.models.lm_head import LMHead
from tests.drafting.made_drafters import HIDDEN, VOCAB, small_config
from tests.drafting.trees import check_shape, children, extend, grow, grow_and_check


class Setting:
    """A small random head, and the true features and tokens of one text."""

    def __init__(self, seed: int, rows: int = 40) -> None:
        torch.manual_seed(seed)
        self.head = EagleHead(small_config(), fc_bias=True).eval()
        self.lm_head = LMHead(nn.Parameter(torch.randn(VOCAB, HIDDEN), requires_grad=False), "lm_head.weight")
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.features = np.random.default_rng(seed).standard_normal((rows, HIDDEN)).astype(np.float32)
        self.next_tokens = np.random.default_rng(seed + 1).integers(0, VOCAB, rows)

    def drafter(self) -> HeadDrafter:
        return HeadDrafter(self.head, self.lm_head, self.embedding)

    def check(self, rows: int, path: list[int], tokens: np.ndarray, log_probs: np.ndarray) -> None:
        """`path` is a chain of draft tokens below the root, after so many true rows."""
        expected = self.recompute(rows, path)
        np.testing.assert_allclose(log_probs, expected[tokens].numpy(), atol=1e-4)
        best = torch.topk(expected, len(tokens)).values.numpy()
        np.testing.assert_allclose(log_probs, best, atol=1e-4)

    @torch.inference_mode()
    def recompute(self, rows: int, path: list[int]) -> torch.Tensor:
        """log-probabilities of the token after `path`, draft tokens below the root, without any cache.

        A chain: rows of true features, then one row per draft token with the feature predicted before it.
        """
        tokens = torch.from_numpy(self.next_tokens[:rows]).tolist()
        features = list(torch.from_numpy(self.features[:rows]))
        for token in [*path, None]:
            predicted = self._causal(tokens, features)[-1]
            if token is not None:
                tokens.append(token)
                features.append(predicted)
        return torch.log_softmax(self.lm_head.logits(predicted[None]), dim=-1)[0]

    def _causal(self, tokens: list[int], features: list[torch.Tensor]) -> torch.Tensor:
        count = len(tokens)
        config = self.head.config
        kv = torch.zeros(2, config.num_key_value_heads, count, HIDDEN // config.num_attention_heads)
        return self.head(
            self.embedding(torch.tensor(tokens)),
            torch.stack(features),
            torch.arange(count),
            KeyValueViews(kv[0], kv[1]),
            torch.ones(count, count, dtype=torch.bool).tril(),
        )


def check_layer(setting: Setting, rows: int, paths: list[list[int]], layer: DraftLayer) -> None:
    check_shape(layer, len(paths), layer.tokens.shape[1])
    for node, path in enumerate(paths):
        setting.check(rows, path, *children(layer, node))


@pytest.mark.parametrize("seed", range(3))
def test_growth_equals_recomputation(seed: int) -> None:
    setting = Setting(seed)
    drafter = setting.drafter()
    drafter.open("s", 40, 0)
    rows = 0
    for growth, step in enumerate((7, 1, 3, 12)):
        extend(drafter, "s", setting.features[rows : rows + step], setting.next_tokens[rows : rows + step])
        rows += step
        grow_and_check(drafter, growth, 4, lambda *given, rows=rows: setting.check(rows, *given), vocab=VOCAB)


def test_a_new_growth_from_the_same_root_discards_the_old_one() -> None:
    setting = Setting(5)
    drafter = setting.drafter()
    drafter.open("s", 10, 0)
    extend(drafter, "s", setting.features[:10], setting.next_tokens[:10])
    first = grow(drafter, "s", 1, Frontier([0], [-1], [0]), 3)
    grow(drafter, "s", 1, Frontier([1], [0], [int(first.tokens[0, 0])]), 3)
    grow(drafter, "s", 2, Frontier([0], [-1], [0]), 3)
    with pytest.raises(ValueError, match="not of growth 2"):
        grow(drafter, "s", 2, Frontier([2], [1], [3]), 3)


def test_a_growth_larger_than_the_scratch_is_still_right() -> None:
    setting = Setting(6)
    drafter = setting.drafter()
    drafter.open("s", 5, 0)
    extend(drafter, "s", setting.features[:5], setting.next_tokens[:5])
    layer = grow(drafter, "s", 1, Frontier([0], [-1], [0]), VOCAB)
    tokens = layer.tokens[0].tolist()
    node = 1
    for _ in range(SCRATCH_ROWS // VOCAB + 2):
        nodes = list(range(node, node + VOCAB))
        node += VOCAB
        layer = grow(drafter, "s", 1, Frontier(nodes, [0] * VOCAB, tokens), 3)
    check_layer(setting, 5, [[token] for token in tokens], layer)


def test_sessions_are_apart_and_capacity_holds() -> None:
    setting = Setting(7)
    drafter = setting.drafter()
    drafter.open("s", 8, 0)
    drafter.open("t", 8, 0)
    extend(drafter, "s", setting.features[:8], setting.next_tokens[:8])
    extend(drafter, "t", setting.features[8:12], setting.next_tokens[8:12])
    check_layer(setting, 8, [[]], grow(drafter, "s", 1, Frontier([0], [-1], [0]), 5))
    with pytest.raises(CapacityError, match="8 rows"):
        extend(drafter, "s", setting.features[:1], setting.next_tokens[:1])
    drafter.close("s")
    drafter.close("s")
    extend(drafter, "t", setting.features[12:16], setting.next_tokens[12:16])


def test_a_payload_in_bfloat16_is_read_as_such() -> None:
    setting = Setting(8)
    drafter = setting.drafter()
    exact = torch.from_numpy(setting.features[:6]).bfloat16()
    setting.features[:6] = exact.float().numpy()
    drafter.open("s", 6, 0)
    extend(drafter, "s", exact.view(torch.uint16).numpy(), setting.next_tokens[:6])
    check_layer(setting, 6, [[]], grow(drafter, "s", 1, Frontier([0], [-1], [0]), 5))
