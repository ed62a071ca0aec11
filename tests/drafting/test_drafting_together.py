"""What several sessions are given together equals what each is given alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowedge.core.errors import CapacityError
from flowedge.core.sampling import SamplingParams
from flowedge.device.kernel_library import missing_reason
from flowedge.drafting import joined, model_drafter
from flowedge.drafting.drafter import ROOT, Drafter, DraftLayer, Frontier, GrowRequest
from flowedge.drafting.joined import JoinedDrafter
from tests.drafting.made_drafters import EXACT, HIDDEN, NAMES, VOCAB, Make, eagle, small
from tests.drafting.trees import extend, grow
from tests.support.breadth import dealt_diagonally

ROWS = 120
SAMPLINGS = (
    None,
    SamplingParams(temperature=0.9, seed=4),
    SamplingParams(temperature=0.7, top_p=0.8, seed=9),
)


@dataclass
class Text:
    """A session's text, and the state of its growth."""

    name: str
    tokens: np.ndarray
    features: np.ndarray
    rows: int = 0
    growth: int = 0
    layer: DraftLayer | None = None
    nodes: list[int] = field(default_factory=list)
    named: int = 1

    @classmethod
    def random(cls, index: int) -> Text:
        rng = np.random.default_rng(index)
        phrase = rng.integers(0, VOCAB, 9)
        tokens = np.concatenate([phrase, rng.integers(0, VOCAB, 6)] * (ROWS // 10))[: ROWS + 1]
        features = 1 + 0.3 * rng.standard_normal((ROWS, 4 * HIDDEN)).astype(np.float32)
        return cls(f"session-{index}", tokens, features)

    def request(self, rng: np.random.Generator) -> GrowRequest:
        """What the session does next: its first rows, a few rows, the next layer, or another tree."""
        choice = rng.random()
        if not self.rows or choice < 0.35:
            count = int(rng.integers(1, 40)) if not self.rows else int(rng.integers(1, 6))
            first, self.rows = self.rows, self.rows + count
            given = self.features[first : self.rows], self.tokens[first + 1 : self.rows + 1]
            if rng.random() < 0.2:
                self.layer = None
                return GrowRequest(self.name, self.growth, Frontier([], [], []), 4, *given)
            return self._at_root(rng, *given)
        if self.layer is None or choice < 0.5:
            return self._at_root(rng)
        parents = sorted(rng.integers(0, len(self.nodes), int(rng.integers(1, 6))).tolist())
        tokens = [self._child(parent, rng) for parent in parents]
        above = [self.nodes[parent] for parent in parents]
        self.nodes = list(range(self.named, self.named + len(parents)))
        self.named += len(parents)
        return GrowRequest(self.name, self.growth, Frontier(self.nodes, above, tokens), 5)

    def _at_root(self, rng: np.random.Generator, *given: np.ndarray) -> GrowRequest:
        self.growth, self.nodes, self.named = self.growth + 1, [ROOT], 1
        root = int(self.tokens[self.rows])
        return GrowRequest(
            self.name, self.growth, Frontier([ROOT], [-1], [root]), int(rng.integers(3, 6)), *given
        )

    def _child(self, parent: int, rng: np.random.Generator) -> int:
        assert self.layer is not None
        proposed = [token for token in self.layer.tokens[parent].tolist() if token >= 0]
        return int(rng.choice(proposed)) if proposed and rng.random() < 0.8 else int(rng.integers(VOCAB))


def opened(
    count: int, *drafters: Drafter, samplings: Sequence[SamplingParams | None] = (None,)
) -> list[Text]:
    """Random texts, of each of which all the drafters have an open session."""
    texts = [Text.random(index) for index in range(count)]
    for index, text in enumerate(texts):
        for drafter in drafters:
            drafter.open(text.name, ROWS, int(text.tokens[0]), samplings[index % len(samplings)])
    return texts


def alone(drafter: Drafter, request: GrowRequest) -> DraftLayer | None:
    if request.next_tokens is not None:
        extend(drafter, request.session, request.features, request.next_tokens)
    if not request.frontier.nodes:
        return None
    return grow(drafter, request.session, request.growth, request.frontier, request.width)


def compare(got: DraftLayer, expected: DraftLayer, exact: bool) -> None:
    assert got.tokens.tolist() == expected.tokens.tolist()
    if exact:
        assert np.array_equal(got.log_probs, expected.log_probs)
    else:
        np.testing.assert_allclose(got.log_probs, expected.log_probs, atol=1e-3)


@pytest.mark.parametrize(("name", "count"), dealt_diagonally(NAMES, (1, 2, 6), one_in=3))
def test_layers_together_are_those_alone(made: dict[str, Make], name: str, count: int) -> None:
    exact = name in EXACT and not missing_reason()
    one, other = made[name](), made[name]()
    texts = opened(count, one, other, samplings=SAMPLINGS)
    rng = np.random.default_rng(count)
    for _ in range(14):
        asked = [text for text in texts if rng.random() < 0.8 and text.rows < ROWS - 40]
        requests = [text.request(rng) for text in asked]
        found = other.grow(requests)
        assert len(found) == len(requests)
        for text, request, layer in zip(asked, requests, found, strict=True):
            expected = alone(one, request)
            if expected is None:
                assert layer.tokens.shape == (0, 0)
                continue
            compare(layer, expected, exact)
            text.layer = expected


def test_nodes_below_the_root_may_be_asked_for_with_the_rows(made: dict[str, Make]) -> None:
    """The root's row is computed in one forward, the nodes below it in another."""
    for name in ("eagle", "lm", "lm+ngram"):
        one, other = made[name](), made[name]()
        texts = opened(2, one, other)
        requests = [
            GrowRequest(
                text.name, 1, Frontier([1, 2], [0, 0], [7, 8]), 4, text.features[:5], text.tokens[1:6]
            )
            for text in texts
        ]
        for request, layer in zip(requests, other.grow(requests), strict=True):
            expected = alone(one, request)
            assert expected is not None
            compare(layer, expected, not missing_reason())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"frontier": Frontier([5], [4], [3])}, "nodes .4. are not of growth"),
    ({"frontier": Frontier([0, 5], [-1, 0], [3, 4])}, "asks for the root beside"),
    ({"session": "session-0"}, "two requests"),
    ({"session": "nobody"}, "not open"),
    ({"next_tokens": np.zeros(ROWS, dtype=np.int64)}, "holds 120 rows"),
]


@pytest.mark.parametrize("name", ["eagle", "eagle3", "lm", "ngram", "eagle+lm+ngram"])
def test_a_request_that_cannot_be_served_changes_nothing(made: dict[str, Make], name: str) -> None:
    one, other = made[name](), made[name]()
    texts, rng = opened(2, one, other), np.random.default_rng(0)
    first = [text.request(rng) for text in texts]
    other.grow(first)
    asked: dict[str, Any] = {
        "session": "session-1",
        "growth": 9,
        "frontier": Frontier([0], [-1], [3]),
        "width": 3,
        "features": texts[1].features,
    }
    good = GrowRequest(
        "session-0", 8, Frontier([0], [-1], [3]), 3, texts[0].features[:3], texts[0].tokens[:3]
    )
    for change, message in REFUSED:
        bad = GrowRequest(**(asked | change))
        with pytest.raises((ValueError, CapacityError), match=message):
            other.grow([good, bad])
        if bad.session != "session-0":
            with pytest.raises((ValueError, CapacityError), match=message):
                other.check_request(bad)
    for request in [*first, good]:
        expected = alone(one, request)
    (layer,) = other.grow([good])
    assert expected is not None
    compare(layer, expected, False)


@pytest.mark.parametrize("name", ["eagle", "eagle+recall", "lm", "eagle+lm+ngram"])
def test_after_memory_ran_out_each_request_can_be_made_again(
    made: dict[str, Make], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = made[name](), made[name]()
    texts, rng = opened(4, one, other), np.random.default_rng(3)
    for step in range(12):
        requests = [text.request(rng) for text in texts if text.rows < ROWS - 40]
        if step % 4:
            model: Any = getattr(other, "_models", [other])[-1]
            ranking = joined if isinstance(other, JoinedDrafter) else model_drafter
            places = ((model, "_compute"), (model, "_logits"), (ranking, "ranked"))
            with monkeypatch.context() as patch:
                patch.setattr(*places[step % 4 - 1], _out_of_memory)
                with pytest.raises(torch.OutOfMemoryError):
                    other.grow(requests)
        for text, request in zip(texts, requests, strict=True):
            (layer,) = other.grow([request])
            expected = alone(one, request)
            if expected is not None:
                compare(layer, expected, False)
                text.layer = expected


def _out_of_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory.")


def noted_products(drafter: Drafter, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list, to which the rows of each product with the proposing head are added."""
    products: list[int] = []
    logits: Any = attrgetter("_logits")(drafter)
    monkeypatch.setattr(drafter, "_logits", lambda hidden: (products.append(len(hidden)), logits(hidden))[1])
    return products


def test_all_rows_take_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the text and nodes of trees pass through each linear layer of a head together."""
    drafter = eagle(native=False)
    texts, rng = opened(3, drafter), np.random.default_rng(1)
    for text, layer in zip(texts, drafter.grow([each.request(rng) for each in texts]), strict=True):
        text.layer = layer
    requests = [text.request(rng) for text in texts]
    counted: list[int] = []
    head: Any = drafter.head
    for linear in (head.fc, head.layers[0].self_attn.q_proj, head.layers[0].mlp.down_proj):
        linear.register_forward_hook(lambda _, inputs, __: counted.append(inputs[0].shape[-2]))
    products = noted_products(drafter, monkeypatch)
    drafter.grow(requests)
    rows = sum(
        each.added_rows or len(each.frontier.nodes) * (list(each.frontier.nodes) != [ROOT])
        for each in requests
    )
    assert counted == [rows] * 3
    assert products == [sum(len(each.frontier.nodes) for each in requests)]


def test_the_small_models_rows_take_one_forward_and_one_product_of_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = small(tmp_path)
    forwards: list[int] = []
    block: Any = attrgetter("_block")(drafter)
    forward = block.forward_together
    monkeypatch.setattr(
        block,
        "forward_together",
        lambda parts, *rest: (forwards.append(len(parts)), forward(parts, *rest))[1],
    )
    products = noted_products(drafter, monkeypatch)
    texts, rng = opened(4, drafter), np.random.default_rng(1)
    requests = [text.request(rng) for text in texts]
    drafter.grow(requests)
    assert forwards == [4]
    assert products == [sum(len(each.frontier.nodes) for each in requests)]
