"""Every drafter ranks a node's children by the noise of the position after the path to the node."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter, Frontier
from flowedge.drafting.ranking import best_drawn_of
from tests.drafting.made_drafters import HIDDEN, VOCAB, Make
from tests.drafting.trees import children, extend, grow, grow_and_check

ROWS, CAPACITY = 24, 40
SAMPLING = SamplingParams(temperature=0.8, seed=21)


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


@pytest.mark.parametrize("kind", ["lm", "eagle", "eagle3", "ngram"])
def test_children_are_those_of_the_noise_at_the_next_position(kind: str, made: dict[str, Make]) -> None:
    """Each node of grown trees against a chain of its own, in a session without noise."""
    drafter, text = made[kind](), Text()
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
