"""Heads over static tensors propose what they propose without, for any history of a session."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from flowedge.drafting.draft_vocabulary import ENOUGH_TOKENS, DraftVocabulary, VocabularyLearner
from flowedge.drafting.drafter import Frontier
from flowedge.drafting.heads import recall
from flowedge.drafting.heads.head_drafter import SCRATCH_ROWS, HeadDrafter, capture_drafting
from flowedge.drafting.model_drafter import TrueSpan
from flowedge.drafting.token_counts import CountsFile, TokenCounts
from flowedge.models.cuda_graphs.recording import CapturingMaker
from tests.drafting.made_drafters import HIDDEN, PART, VOCAB, eagle, eagle3
from tests.drafting.trees import extend, predict
from tests.models.cuda_graphs.static_pipeline import CountingMaker, RefusingMaker

ROWS = 1200
Make = Callable[[], HeadDrafter]


class Histories:
    """The same session of two drafters, of which the second computes over static tensors."""

    def __init__(self, make: Make, seed: int, capacity: int = ROWS) -> None:
        self.drafters = [make(), make()]
        self.maker = CountingMaker()
        self.drafters[1].decode_statically(self.maker, uncaptured=0)
        self.rng = np.random.default_rng(seed)
        # Like one another, as a target's states are, so that errors are recalled.
        self.features = 1 + 0.3 * self.rng.standard_normal((capacity, 4 * HIDDEN)).astype(np.float32)
        self.tokens = self.rng.integers(0, VOCAB, capacity)
        self.rows = self.growth = 0
        for drafter in self.drafters:
            drafter.open("s", capacity, 0)

    def extend(self, count: int) -> None:
        rows = slice(self.rows, self.rows + count)
        for drafter in self.drafters:
            extend(drafter, "s", self.features[rows], self.tokens[rows])
        self.rows += count

    def rewind(self, count: int) -> None:
        self.rows -= count
        for drafter in self.drafters:
            drafter.rewind("s", self.rows)

    def grow(self, layers: Sequence[int]) -> None:
        """Grow a tree of random nodes, with so many in each layer, and compare all proposals."""
        self.growth += 1
        nodes, parents, tokens, named = [0], [-1], [0], 1
        for width in layers:
            frontier = Frontier(nodes, parents, tokens)
            self.compare(frontier)
            parents = self.rng.choice(nodes, width).tolist()
            tokens = self.rng.integers(0, VOCAB, width).tolist()
            nodes, named = list(range(named, named + width)), named + width
        self.compare(Frontier(nodes, parents, tokens))

    def compare(self, frontier: Frontier) -> None:
        expected, got = (predict(drafter, "s", self.growth, frontier) for drafter in self.drafters)
        assert got.positions == expected.positions
        assert (got.ids is None) == (expected.ids is None)
        if got.ids is not None and expected.ids is not None:
            assert torch.equal(got.ids, expected.ids)
        torch.testing.assert_close(got.logits, expected.logits, atol=2e-4, rtol=1e-4)


def check(histories: Histories, prompt: int, rounds: int = 6) -> None:
    histories.extend(prompt)
    for _ in range(rounds):
        histories.grow(histories.rng.integers(1, 12, 3).tolist())
        if histories.rng.random() < 0.3:
            histories.rewind(int(histories.rng.integers(1, 5)))
        histories.extend(int(histories.rng.integers(1, 7)))


@pytest.mark.parametrize("part", [None, PART], ids=["whole", "part"])
@pytest.mark.parametrize("recalls", [False, True])
@pytest.mark.parametrize("prompt", [1, 40, 245, 500])
def test_histories_of_an_eagle_head(prompt: int, recalls: bool, part: DraftVocabulary | None) -> None:
    histories = Histories(lambda: eagle(recalls, part=part), prompt)
    check(histories, prompt)
    assert histories.maker.runs >= 24


def test_histories_of_an_eagle3_head(tmp_path: Path) -> None:
    histories = Histories(lambda: eagle3(tmp_path), 1)
    check(histories, 60)
    assert histories.maker.runs >= 24


def test_errors_of_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the window are copied where the columns are many more."""
    monkeypatch.setattr(recall, "WINDOW", 100)
    monkeypatch.setattr(recall, "CHUNK", 16)
    histories = Histories(lambda: eagle(recalls=True), 3)
    check(histories, 700)


def test_a_payload_in_bfloat16_is_read_as_such() -> None:
    histories = Histories(eagle, 4)
    histories.features = torch.from_numpy(histories.features).bfloat16().view(torch.uint16).numpy()
    check(histories, 30)


def test_rows_of_padding_leave_other_rows_alone() -> None:
    histories = Histories(lambda: eagle(recalls=True), 5)
    histories.extend(3)
    histories.extend(3)
    before, after = (drafter.predict_true([TrueSpan("s", 0, 6)])[0].logits for drafter in histories.drafters)
    torch.testing.assert_close(before, after, atol=1e-4, rtol=1e-4)


def test_a_growth_larger_than_the_scratch_is_still_right() -> None:
    histories = Histories(eagle, 6, capacity=20)
    histories.extend(9)
    histories.grow([60] * (SCRATCH_ROWS // 60 + 4))
    histories.extend(2)
    runs = histories.maker.runs
    histories.grow([4, 4])
    assert histories.maker.runs == runs, "the larger store is not of the pool"


def test_a_later_session_has_the_store_and_the_pieces_of_an_ended_one() -> None:
    histories = Histories(eagle, 7, capacity=100)
    check(histories, 20)
    histories.rewind(histories.rows)
    check(histories, 20)
    made = histories.maker.made
    for drafter in histories.drafters:
        drafter.close("s")
        drafter.open("s", 90, 0)
    histories.rows = 0
    check(histories, 20, rounds=2)
    assert histories.maker.made == made


def test_memory_is_accounted_for() -> None:
    plain, static = eagle(recalls=True), eagle(recalls=True)
    static.decode_statically(CountingMaker())
    values = 2 * 2 * 8 + HIDDEN + 3 * HIDDEN
    assert plain.session_bytes(100) == (100 + SCRATCH_ROWS) * values * 4
    assert static.session_bytes(100) == plain.session_bytes(100) * 1.25
    assert static.decoding_bytes == 0
    static.open("s", 100, 0)
    assert static.decoding_bytes == 0
    static.close("s")
    assert 100 * values * 4 < static.decoding_bytes <= static.session_bytes(100)
    static.free_idle()
    assert static.decoding_bytes == 0


def test_a_device_that_records_nothing_computes_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    histories = Histories(eagle, 8)
    histories.drafters[1].decode_statically(RefusingMaker(), uncaptured=0)
    histories.drafters[1].open("s", ROWS, 0)
    with caplog.at_level(logging.WARNING):
        check(histories, 20, rounds=3)
    messages = [record.getMessage() for record in caplog.records]
    assert [message.split(" run ")[0] for message in messages] == [
        "extensions of the draft head",
        "growths of the draft head",
    ]
    assert all("operation not permitted when stream is capturing)" in message for message in messages)


def test_a_cpu_records_nothing() -> None:
    drafter = eagle()
    capture_drafting(drafter)
    drafter.open("s", 10, 0)
    assert drafter.session_bytes(10) == (10 + SCRATCH_ROWS) * (2 * 2 * 8 + HIDDEN) * 4


def test_another_vocabulary_takes_the_place_of_what_was_recorded(tmp_path: Path) -> None:
    histories = Histories(lambda: eagle(part=PART), 3)
    check(histories, 40, rounds=2)
    file = CountsFile(tmp_path, "m", VOCAB)
    counts = TokenCounts(VOCAB)
    counts.add(np.repeat([1, 2, 3], ENOUGH_TOKENS))
    file.write(counts)
    for drafter in histories.drafters:
        drafter.learn_by(VocabularyLearner(3, file))
        drafter.close("s")
        assert drafter.draft_tokens == len(PART.ids), "nothing new was drawn"
        learner = VocabularyLearner(3, file)
        learner.vocabulary = None  # as before enough was known
        drafter.learn_by(learner)
        drafter.open("s", ROWS, 0)
        drafter.close("s")
        assert drafter.draft_tokens == 3
        drafter.open("s", ROWS, 0)
    histories.rows = 0
    check(histories, 40, rounds=2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("quant", ["none", "int8", "int4"])
@pytest.mark.parametrize("part", [None, PART])
def test_graphs_propose_what_is_proposed_without(part: DraftVocabulary | None, quant: str) -> None:
    histories = Histories(lambda: eagle(True, part=part, device="cuda:0", quant=quant), 9)
    drafter = histories.drafters[1]
    drafter.decode_statically(CapturingMaker(drafter.device), uncaptured=0)
    drafter.open("s", ROWS, 0)
    check(histories, 245)
    assert not drafter.decoding_failure
