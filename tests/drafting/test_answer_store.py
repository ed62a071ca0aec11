"""Earlier answers: how many are kept, whose, and for how long."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.drafting.lookup.answer_store import AnswerStore, EndedAnswer
from flowedge.drafting.suffix_index import MAX_N, SuffixIndex


def add(store: AnswerStore, tenant: str, *tokens: int) -> None:
    store.add(EndedAnswer(tenant, tokens))


def of_texts(texts: list[tuple[int, ...]]) -> SuffixIndex:
    index = SuffixIndex()
    for text in texts:
        index.begin_text()
        index.extend(text)
    return index


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 3), min_size=1, max_size=20))),
)
def test_the_latest_answers_that_fit_and_no_others(most: int, added: list[tuple[str, list[int]]]) -> None:
    store = AnswerStore(most)
    kept: list[tuple[str, tuple[int, ...]]] = []
    for tenant, tokens in added:
        add(store, tenant, *tokens)
        if len(tokens) + 1 <= most:
            kept.append((tenant, tuple(tokens)))
        while sum(len(text) + 1 for _, text in kept) > most:
            del kept[0]
        assert len(store) == sum(len(text) + 1 for _, text in kept) <= most
        for name in "abc":
            own = [text for tenant, text in kept if tenant == name]
            index = store.of(name)
            if not own:
                assert index is None
                continue
            assert index is not None
            wanted = of_texts(own)
            assert (index.tokens, index.places) == (wanted.tokens, wanted.places)


def test_a_tenant_sees_only_its_own_answers() -> None:
    store = AnswerStore(100)
    add(store, "a", 1, 2, 3)
    assert store.of("b") is None
    add(store, "b", 7, 8, 9)
    for tenant, tokens in (("a", {1, 2, 3}), ("b", {7, 8, 9})):
        index = store.of(tenant)
        assert index is not None
        assert {token for token in index.tokens if token >= 0} == tokens


def test_what_a_session_began_with_does_not_change() -> None:
    store = AnswerStore(9)
    add(store, "a", 1, 2, 3)
    begun = store.of("a")
    assert begun is not None
    before = begun.tokens[:], begun.places[:]
    add(store, "a", 1, 2, 4)
    add(store, "a", 5, 6, 7)
    assert (begun.tokens, begun.places) == before
    later = store.of("a")
    assert later is not None
    assert 3 not in later.tokens, "the oldest has left as a whole"


def test_an_answer_that_is_longer_than_the_store_displaces_nothing() -> None:
    store = AnswerStore(4)
    add(store, "a", 1, 2, 3)
    add(store, "a", 4, 5, 6, 7)
    index = store.of("a")
    assert index is not None
    assert [*index.tokens] == [-1, 1, 2, 3]


def test_the_end_of_the_prompt_stands_before_an_answer() -> None:
    prompt = tuple(range(100, 100 + 2 * MAX_N))
    assert EndedAnswer.of("a", prompt, [1, 2]).tokens == (*prompt[MAX_N:], 1, 2)
    assert EndedAnswer.of("a", [5], [1, 2]).tokens == (5, 1, 2)
