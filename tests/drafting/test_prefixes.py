"""A session that begins with a copy of another's rows proposes what it would if it were given them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flowedge.drafting.draft_vocabulary import ENOUGH_TOKENS, VocabularyLearner
from flowedge.drafting.drafter import ROOT, Drafter, DraftLayer, DraftPrefix, Frontier
from flowedge.drafting.lm import LMDrafter
from flowedge.drafting.token_counts import CountsFile, TokenCounts
from tests.drafting.made_drafters import HIDDEN, NAMES, VOCAB, Make, small
from tests.drafting.trees import extend, grow
from tests.support.breadth import dealt_diagonally

ROWS, SOURCE_ROWS = 90, 50


class Texts:
    """Two texts that begin alike, and the features of their rows."""

    def __init__(self, common: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.first, self.second = rng.integers(0, VOCAB, (2, ROWS + 1))
        self.features = 1 + 0.3 * rng.standard_normal((ROWS, 4 * HIDDEN)).astype(np.float32)
        self.second[: common + 1] = self.first[: common + 1]

    def extend(self, drafter: Drafter, session: str, text: np.ndarray, start: int, stop: int) -> None:
        extend(drafter, session, self.features[start:stop], text[start + 1 : stop + 1])


def layers(drafter: Drafter, session: str, growth: int) -> list[DraftLayer]:
    """Two layers of a growth."""
    root = grow(drafter, session, growth, Frontier([ROOT], [-1], [0]), 4)
    below = Frontier([1, 2, 3], [0, 0, 0], [7, 11, 30])
    return [root, grow(drafter, session, growth, below, 4)]


def check_equal(got: list[DraftLayer], expected: list[DraftLayer]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "rows", "source"),
    dealt_diagonally(NAMES, (0, 1, 23, SOURCE_ROWS), ("open", "kept"), one_in=4),
)
def test_a_prefix_stands_for_its_rows(made: dict[str, Make], name: str, rows: int, source: str) -> None:
    keep = source == "kept"
    drafter, texts = made[name](), Texts(rows)
    drafter.open("source", ROWS, int(texts.first[0]))
    for growth, (start, stop) in enumerate(((0, 20), (20, 31), (31, 33), (33, SOURCE_ROWS))):
        texts.extend(drafter, "source", texts.first, start, stop)
        layers(drafter, "source", growth)
    if keep:
        drafter.keep("source")
    drafter.open("copy", ROWS, int(texts.second[0]), prefix=DraftPrefix("source", rows))
    drafter.open("plain", ROWS, int(texts.second[0]))
    if rows:
        texts.extend(drafter, "plain", texts.second, 0, rows)
    start = rows
    for growth, count in enumerate((4, 9)):
        for session in ("copy", "plain"):
            texts.extend(drafter, session, texts.second, start, start + count)
        check_equal(layers(drafter, "copy", growth), layers(drafter, "plain", growth))
        start += count
    if not keep:
        texts.extend(drafter, "source", texts.first, SOURCE_ROWS, SOURCE_ROWS + 3)
        drafter.open("again", ROWS, int(texts.first[0]))
        texts.extend(drafter, "again", texts.first, 0, SOURCE_ROWS + 3)
        if "ngram" not in name or name == "ngram":  # of lookup's weight, the source has learnt
            check_equal(layers(drafter, "source", 9), layers(drafter, "again", 9))
    for session in ("source", "copy", "plain"):
        drafter.close(session)


@pytest.mark.parametrize("name", ["eagle", "eagle3", "lm", "eagle of a part"])
def test_the_copied_rows_alone_lead_to_a_root(made: dict[str, Make], name: str) -> None:
    drafter, texts = made[name](), Texts(SOURCE_ROWS)
    drafter.open("source", ROWS, int(texts.first[0]))
    texts.extend(drafter, "source", texts.first, 0, SOURCE_ROWS)
    expected = layers(drafter, "source", 1)
    drafter.open("copy", ROWS, int(texts.first[0]), prefix=DraftPrefix("source", SOURCE_ROWS))
    check_equal(layers(drafter, "copy", 1), expected)


@pytest.mark.parametrize("name", ["eagle", "lm", "ngram", "eagle+lm+ngram"])
def test_what_cannot_be_copied_is_refused(made: dict[str, Make], name: str) -> None:
    drafter, texts = made[name](), Texts(SOURCE_ROWS)
    drafter.open("source", ROWS, int(texts.first[0]))
    texts.extend(drafter, "source", texts.first, 0, 10)
    first = int(texts.first[0])
    for prefix, token, capacity, message in (
        (DraftPrefix("nobody", 3), first, ROWS, "session nobody, whose rows are to be copied, is not in"),
        (DraftPrefix("source", 11), first, ROWS, "11 rows of session source cannot be copied: it has 10"),
        (DraftPrefix("source", -1), first, ROWS, "-1 rows of session source cannot be copied"),
        (DraftPrefix("source", 9), first, 8, "and the new session takes 8"),
        (DraftPrefix("source", 9), first + 1, ROWS, "begins with token"),
    ):
        with pytest.raises(ValueError, match=message):
            drafter.open("copy", capacity, token, prefix=prefix)
    drafter.keep("source")
    drafter.keep("source")
    drafter.keep("nobody")
    drafter.open("copy", ROWS, first, prefix=DraftPrefix("source", 10))
    drafter.close("source")
    with pytest.raises(ValueError, match="session source, whose rows are to be copied, is not in"):
        drafter.open("other", ROWS, first, prefix=DraftPrefix("source", 10))


def test_a_kept_session_takes_no_more_rows(made: dict[str, Make]) -> None:
    drafter, texts = made["lm"](), Texts(0)
    drafter.open("source", ROWS, int(texts.first[0]))
    texts.extend(drafter, "source", texts.first, 0, 10)
    drafter.keep("source")
    with pytest.raises(ValueError, match="session source of the drafter is not open"):
        texts.extend(drafter, "source", texts.first, 10, 12)


def test_a_kept_session_does_not_delay_another_vocabulary(tmp_path: Path) -> None:
    """Its rows are copied into a session that proposes the new vocabulary's tokens and those of its text."""
    drafter: LMDrafter = small(tmp_path / "lm")
    texts, file = Texts(20), CountsFile(tmp_path, "m", VOCAB)
    counts = TokenCounts(VOCAB)
    counts.add(np.repeat([1, 2, 3], ENOUGH_TOKENS))
    file.write(counts)
    learner = VocabularyLearner(3, file)
    learner.vocabulary = None  # as before enough was known
    drafter.learn_by(learner)
    drafter.open("source", ROWS, int(texts.first[0]))
    texts.extend(drafter, "source", texts.first, 0, 30)
    drafter.keep("source")
    assert drafter.draft_tokens == 3
    drafter.open("copy", ROWS, int(texts.second[0]), prefix=DraftPrefix("source", 20))
    drafter.open("plain", ROWS, int(texts.second[0]))
    texts.extend(drafter, "plain", texts.second, 0, 20)
    for session in ("copy", "plain"):
        texts.extend(drafter, session, texts.second, 20, 24)
    check_equal(layers(drafter, "copy", 1), layers(drafter, "plain", 1))
