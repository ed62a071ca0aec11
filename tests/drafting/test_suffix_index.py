"""The index of a text's places against a search through the text."""

from __future__ import annotations

from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowedge.drafting.suffix_index import MAX_N, MOST_PLACES, SuffixIndex

TOKENS = st.lists(st.integers(0, 2), max_size=30)


def found(index: SuffixIndex, suffix: list[int]) -> list[tuple[list[int], list[int]]]:
    return [index.followers(each) for each in index.ranges(suffix)]


def searched(texts: list[list[int]], suffix: list[int]) -> list[tuple[list[int], list[int]]]:
    """What `found` returns, by a look at every place; each text has a break before it."""
    answer: list[tuple[list[int], list[int]]] = []
    for n in range(1, min(len(suffix), MAX_N) + 1):
        tokens, places, start = [], [], 1
        for text in texts:
            for i in range(n, len(text)):
                if text[i - n : i] == suffix[len(suffix) - n :]:
                    tokens.append(text[i])
                    places.append(start + i)
            start += len(text) + 1
        if not tokens:
            break
        answer.append((tokens, places))
    return answer


class Histories(RuleBasedStateMachine):
    """An index that grows, goes back and loses its first texts."""

    def __init__(self) -> None:
        super().__init__()
        self.index = SuffixIndex()
        self.texts: list[list[int]] = [[]]
        self.copies: list[tuple[SuffixIndex, list[list[int]]]] = []

    @rule(tokens=TOKENS)
    def extend(self, tokens: list[int]) -> None:
        self.index.extend(tokens)
        self.texts[-1] += tokens

    @rule()
    def begin_text(self) -> None:
        self.index.begin_text()
        if self.texts[-1]:
            self.texts.append([])

    @precondition(lambda self: len(self.texts) == 1)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.texts[0])))
        self.index.truncate(length)
        del self.texts[0][length:]

    @precondition(lambda self: len(self.texts) > 1)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.texts) - 1))
        self.index.drop(sum(len(text) + 1 for text in self.texts[:count]))
        del self.texts[:count]

    @rule()
    def copy(self) -> None:
        self.copies.append((self.index.copy(), [[*text] for text in self.texts]))

    @invariant()
    def equals_the_search(self) -> None:
        for index, texts in [(self.index, self.texts), *self.copies[-1:]]:
            for suffix in (texts[-1][-20:], texts[0][3:9], [0], [1, 0, 1], [2, 2, 2, 2]):
                assert found(index, suffix) == searched(texts, suffix)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


@settings(max_examples=100, deadline=None)
@given(TOKENS, st.integers(1, 40))
def test_the_end_of_a_text(tokens: list[int], count: int) -> None:
    index = SuffixIndex()
    index.extend(tokens)
    assert index.length == len(tokens)
    assert index.end(count) == tuple(tokens[-count:])


def test_a_match_does_not_cross_from_one_text_to_the_next() -> None:
    index = SuffixIndex()
    index.extend([1, 2])
    index.begin_text()
    index.extend([3, 4])
    assert found(index, [2]) == []
    assert found(index, [2, 3]) == [([4], [5])], "of one token alone"


def test_of_many_places_an_even_share_is_counted() -> None:
    index = SuffixIndex()
    index.extend([7, 1] * 3000 + [7, 2] * 1000)
    (found,) = (index.followers(each) for each in islice(index.ranges([7]), 1))
    tokens, places = found
    assert MOST_PLACES / 2 < len(tokens) <= MOST_PLACES
    assert places == sorted(places)
    assert abs(tokens.count(2) / len(tokens) - 1 / 4) < 0.02


def test_a_token_takes_few_bytes() -> None:
    index = SuffixIndex()
    index.extend(i * i % 1009 for i in range(20_000))
    taken = sum(array.buffer_info()[1] * array.itemsize for array in (index.tokens, index.places))
    assert taken == 8 * 20_000, "and the break before the text in place of its first place"
