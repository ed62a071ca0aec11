"""Counts of drawn tokens, the vocabularies that are chosen by them, and the file that keeps them."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowedge.drafting.draft_vocabulary import ENOUGH_TOKENS, WRITE_TOKENS, DraftVocabulary, VocabularyLearner
from flowedge.drafting.token_counts import CountsFile, TokenCounts

VOCAB = 20


def counts(*tokens: int) -> TokenCounts:
    found = TokenCounts(VOCAB)
    found.add(np.array(tokens, dtype=np.int64))
    return found


@given(st.lists(st.integers(0, VOCAB - 1), max_size=60), st.integers(1, VOCAB))
def test_the_most_frequent_tokens_cover_the_most(tokens: list[int], size: int) -> None:
    found = counts(*tokens)
    ranked = sorted(range(VOCAB), key=lambda token: (-tokens.count(token), token))
    assert found.most_frequent(size).tolist() == ranked[:size]
    covered = sum(token in ranked[:size] for token in tokens)
    assert found.coverage(found.most_frequent(size)) == pytest.approx(covered / max(len(tokens), 1))
    assert found.total == len(tokens)


def test_ids_beyond_the_vocabulary_are_not_counted() -> None:
    assert counts(3, VOCAB, -1, 3).total == 2


@pytest.mark.parametrize(
    "wrong", [np.zeros(VOCAB - 1, np.int64), np.zeros(VOCAB, np.int32), np.full(VOCAB, -1, np.int64)]
)
def test_wrong_counts_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="not negative"):
        TokenCounts(VOCAB, wrong)


def test_a_vocabulary_knows_its_tokens() -> None:
    part = DraftVocabulary.of(counts(7, 7, 7, 5, 5, 11), 3)
    assert part.ids.tolist() == [7, 5, 11]
    assert part.outside(np.array([5, 6, 11, 19])).tolist() == [False, True, False, True]
    assert part.within(10).ids.tolist() == [7, 5] and part.within(VOCAB) is part
    assert part.fingerprint != DraftVocabulary(np.array([5, 7, 11]), VOCAB).fingerprint


@pytest.mark.parametrize("ids", [[], [3, 3], [-1], [VOCAB]])
def test_a_vocabulary_names_each_token_once(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="once each"):
        DraftVocabulary(np.array(ids, dtype=np.int64), VOCAB)


def test_counts_outlive_a_restart(tmp_path: Path) -> None:
    file = CountsFile(tmp_path / "state", "abc", VOCAB)
    assert file.read().total == 0
    file.write(counts(1, 2, 2))
    assert file.read().counts.tolist() == counts(1, 2, 2).counts.tolist()
    assert [path.name for path in file.path.parent.iterdir()] == ["abc.safetensors"]


@pytest.mark.parametrize("content", [b"", b"not a file of tensors", b"x" * 10_000])
def test_a_damaged_file_is_ignored_and_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = CountsFile(tmp_path, "abc", VOCAB)
    file.write(counts(1))
    file.path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert file.read().total == 0
    assert "cannot be used and begin anew" in caplog.text
    file.write(counts(1))
    assert file.read().total == 1


def test_counts_of_another_vocabulary_are_ignored(tmp_path: Path) -> None:
    CountsFile(tmp_path, "abc", VOCAB).write(counts(1))
    assert CountsFile(tmp_path, "abc", VOCAB - 1).read().total == 0


def test_a_state_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        CountsFile(tmp_path / "file", "abc", VOCAB).write(counts(1))
    assert "cannot be written" in caplog.text


def test_a_vocabulary_is_chosen_when_enough_is_known_and_again_at_twice_as_much(tmp_path: Path) -> None:
    file = CountsFile(tmp_path, "abc", VOCAB)
    learner = VocabularyLearner(2, file)
    assert learner.vocabulary is None
    learner.add(np.full(ENOUGH_TOKENS - 1, 3))
    assert not learner.rest() and learner.vocabulary is None
    learner.add(np.array([4]))
    assert learner.rest() and learner.vocabulary is not None
    assert learner.vocabulary.ids.tolist() == [3, 4]
    learner.add(np.full(ENOUGH_TOKENS - 1, 9))
    assert not learner.rest()
    learner.add(np.array([9]))
    assert learner.rest() and learner.vocabulary.ids.tolist() == [9, 3]
    later = VocabularyLearner(2, file).vocabulary
    assert later is not None and sorted(later.ids.tolist()) == [3, 9]


def test_counts_are_written_seldom(tmp_path: Path) -> None:
    file = CountsFile(tmp_path, "abc", VOCAB)
    learner = VocabularyLearner(2, file)
    learner.add(np.full(WRITE_TOKENS - 1, 3))
    learner.rest()
    assert not file.path.exists()
    learner.add(np.array([3]))
    learner.rest()
    assert file.read().total == WRITE_TOKENS
