"""Where a generation ends: end-of-sequence ids, stop strings, the token limit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.request import Request
from flowedge.core.sampling import SamplingParams
from flowedge.engine.draft_node.session_answer import Accepted, OutputText

WORDS = {1: "a", 2: "ab", 3: "b", 4: "bc", 5: "c", 6: "abc", 7: "\n", 8: "", 9: "x"}
EOS = 0


class Words:
    """Each token is a word; some tokens are only half of one, which is held back."""

    def __init__(self, halves: bool = False) -> None:
        self.halves = halves
        self.held = ""

    def push(self, token: int) -> str:
        if not self.halves:
            return WORDS[token]
        text, self.held = self.held, WORDS[token]
        return text

    def flush(self) -> str:
        text, self.held = self.held, ""
        return text

    def show(self, tokens: frozenset[int]) -> None:
        pass


def output(stop=(), eos=(EOS,), max_new_tokens=1_000, halves=False) -> OutputText:
    request = Request(
        session="s",
        prompt=(1,),
        sampling=SamplingParams(),
        max_new_tokens=max_new_tokens,
        eos=frozenset(eos),
        stop=tuple(stop),
    )
    return OutputText(request, Words(halves))


def test_tokens_that_end_nothing_come_out_as_they_are():
    out = output()
    assert out.push((1, 2)) == Accepted((1, 2), "aab", None)
    assert out.push((3,)) == Accepted((3,), "b", None)
    assert out.push(()) == Accepted((), "", None)


@pytest.mark.parametrize(
    ("limits", "tokens", "accepted"),
    [
        pytest.param({}, (1, 3, EOS, 5, 1), ((1, 3, EOS), "ab", "eos"), id="eos is a token but no text"),
        pytest.param({}, (EOS,), ((EOS,), "", "eos"), id="eos alone"),
        pytest.param({}, (EOS, 1, 2), ((EOS,), "", "eos"), id="eos first"),
        pytest.param({"eos": (7, 9)}, (EOS + 1, 9, 7), ((1, 9), "a", "eos"), id="second of two eos"),
        pytest.param({"eos": (7, 9)}, (1, 7, 9), ((1, 7), "a", "eos"), id="first of two eos"),
        pytest.param({"max_new_tokens": 2}, (1, EOS), ((1, EOS), "a", "eos"), id="eos at the limit"),
        pytest.param({"stop": ["bc", "abc"]}, (9, 6), ((9, 6), "x", "stop"), id="longer stop begins first"),
        pytest.param({"stop": ["abc", "bc"]}, (9, 6), ((9, 6), "x", "stop"), id="in the other order"),
        pytest.param({"stop": ["bc", "abcab"]}, (9, 2, 5), ((9, 2, 5), "xa", "stop"), id="longer not whole"),
        pytest.param({"stop": ["ab", "abc"]}, (9, 2), ((9, 2), "x", "stop"), id="stops begin alike"),
        pytest.param({"stop": ["b"]}, (6, 9, 9), ((6,), "a", "stop"), id="nothing after the stop"),
        pytest.param({"stop": ["", "\n"]}, (1, 7), ((1, 7), "a", "stop"), id="an empty stop beside another"),
        pytest.param({"stop": [""]}, (1,), ((1,), "a", None), id="an empty stop"),
        pytest.param({"max_new_tokens": 1}, (9,), ((9,), "x", "length"), id="limit of one token"),
        pytest.param(
            {"stop": ["abc"], "max_new_tokens": 2}, (9, 2), ((9, 2), "xab", "length"), id="limit releases"
        ),
        pytest.param(
            {"stop": ["abc"], "max_new_tokens": 2}, (2, 5), ((2, 5), "", "stop"), id="stop at the limit"
        ),
    ],
)
def test_where_the_tokens_of_one_verification_end(limits, tokens, accepted):
    assert output(**limits).push(tokens) == Accepted(*accepted)


def test_eos_releases_what_was_held_for_a_stop_string():
    out = output(stop=["abx"])
    assert out.push((2,)) == Accepted((2,), "", None)
    assert out.push((EOS,)) == Accepted((EOS,), "ab", "eos")


@pytest.mark.parametrize(
    ("tokens", "count", "text"),
    [
        ((9, 6, 9), 2, "x"),  # within one token
        ((9, 1, 3, 5, 9), 4, "x"),  # one letter a token
        ((9, 2, 5, 9), 3, "x"),
        ((9, 1, 4, 9), 3, "x"),
        ((1, 1, 4, 9), 3, "a"),  # a start that turns out to be none, then the real one
        ((2, 2, 5, 9), 3, "ab"),
        ((2, 8, 5), 3, ""),  # a token without text in between
    ],
)
def test_a_stop_string_is_found_across_token_borders(tokens, count, text):
    want = Accepted(tokens[:count], text, "stop")
    assert output(stop=["abc"]).push(tokens) == want
    out = output(stop=["abc"])
    parts = [out.push((token,)) for token in tokens[:count]]
    assert "".join(part.text for part in parts) == text
    assert [part.reason for part in parts] == [None] * (count - 1) + ["stop"]


def test_a_start_of_a_stop_string_is_held_back_and_released():
    out = output(stop=["abx"])
    assert out.push((9, 1)).text == "x"
    assert out.push((3,)).text == ""
    assert out.push((5,)).text == "abc", "it was not the stop string after all"
    assert out.push((1,)).text == ""
    assert out.push((1,)).text == "a", "the second a may be the start; the first is not any more"


def test_a_stop_string_that_overlaps_itself():
    out = output(stop=["aab"])
    assert out.push((1, 1, 1)).text == "a"
    assert out.push((3,)) == Accepted((3,), "", "stop")


def test_the_limit_in_the_middle_of_what_was_accepted():
    out = output(max_new_tokens=3)
    assert out.push((1,)).reason is None
    assert out.push((3, 5, 9, 9)) == Accepted((3, 5), "bc", "length")


def test_text_that_is_not_complete_yet_is_flushed_at_the_end():
    out = output(max_new_tokens=2, halves=True)
    assert out.push((1,)) == Accepted((1,), "", None)
    assert out.push((3,)) == Accepted((3,), "ab", "length")
    assert output(halves=True).push((1, 3, EOS)) == Accepted((1, 3, EOS), "ab", "eos")


def test_a_stop_string_in_the_flushed_text_is_cut_too():
    accepted = output(stop=["bc"], halves=True).push((1, 3, 5, EOS))
    assert accepted.tokens == (1, 3, 5, EOS)
    assert accepted.text == "a"
    assert output(stop=["bc"], halves=True, max_new_tokens=3).push((1, 3, 5)).text == "a"


def reference(tokens, stop, eos, limit) -> tuple[list[int], str, str | None]:
    """Find the stop by searching the whole text again after each token."""
    text, out = "", []
    for token in tokens:
        out.append(token)
        if token in eos:
            return out, text, "eos"
        text += WORDS[token]
        ends = [text.find(s) for s in stop if s in text]
        if ends:
            return out, text[: min(ends)], "stop"
        if len(out) == limit:
            return out, text, "length"
    return out, text, None


@given(
    tokens=st.lists(st.integers(0, 9), max_size=14),
    stop=st.lists(st.text("abcx\n", min_size=1, max_size=4), max_size=3),
    limit=st.integers(1, 16),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_however_tokens_come_the_output_is_the_same(tokens, stop, limit, data):
    """The output does not depend on the number of tokens that a verification accepts."""
    want_tokens, want_text, want_reason = reference(tokens, stop, {EOS}, limit)
    out, got, text, reason = output(stop=stop, max_new_tokens=limit), [], "", None
    at = 0
    while at < len(tokens) and reason is None:
        size = data.draw(st.integers(1, 5))
        accepted = out.push(tuple(tokens[at : at + size]))
        at += size
        got += accepted.tokens
        text += accepted.text
        reason = accepted.reason
        assert want_text.startswith(text), "text came out that does not belong to the output"
    assert (got, reason) == (want_tokens, want_reason)
    if reason is not None:
        assert text == want_text
    else:
        held = want_text[len(text) :]
        assert held == "" or any(s.startswith(held) for s in stop)


def test_before_the_least_number_of_tokens_no_stop_string_ends_the_answer() -> None:
    request = Request("s", (1,), SamplingParams(), 9, stop=("b",), min_tokens=3)
    out = OutputText(request, Words())
    assert out.push((1, 3)) == Accepted((1, 3), "ab", None)
    assert out.push((5, 1, 3, 5)) == Accepted((5, 1, 3), "ca", "stop")
