"""Grammars for the bundled tokenizer: what they allow, and what is refused by name."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from flowedge.core.errors import GrammarError
from flowedge.core.grammar import GrammarKind, GrammarSource
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids, load_tokenizer
from flowedge.text.grammar_compiler import MAX_COMPILED, GrammarCompiler
from flowedge.text.grammar_matcher import GrammarMatcher, GrammarVocabulary

EOS = 1
VOCAB = 4096
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(Checkpoint.open("bundled"))


@pytest.fixture(scope="module")
def compiler(tokenizer: Any) -> GrammarCompiler:
    checkpoint = Checkpoint.open("bundled")
    return GrammarCompiler(tokenizer, eos_token_ids(checkpoint, tokenizer), VOCAB)


def follows(matcher: GrammarMatcher, tokens: list[int]) -> bool:
    """Whether each token is allowed in its place; the matcher stands after them then."""
    for token in tokens:
        if not matcher.allowed()[token]:
            return False
        matcher.push(token)
    return True


@pytest.mark.parametrize(
    ("kind", "grammar", "right", "wrong"),
    [
        ("json_schema", json.dumps(PERSON), '{"name": "Bo", "age": 3}', '{"age": 3}'),
        ("json_object", "", '{ "a": [1, 2],\n "b":{}}', "[1]"),
        ("regex", "a+b?", "aaab", "b"),
        ("lark", 'start: "x" ("," "x")*', "x,x", "x,,"),
    ],
)
def test_texts_that_follow(
    compiler: GrammarCompiler, tokenizer: Any, kind: GrammarKind, grammar: str, right: str, wrong: str
) -> None:
    source = GrammarSource(kind, grammar)
    tokens = tokenizer.encode(right, add_special_tokens=False)
    matcher = compiler.matcher(source)
    assert not matcher.allowed()[EOS], "the answer is not complete"
    assert follows(matcher, tokens)
    assert matcher.allowed()[EOS]
    assert not follows(compiler.matcher(source), tokenizer.encode(wrong, add_special_tokens=False))


def test_where_a_grammar_can_only_end_the_end_is_all_that_is_allowed(
    compiler: GrammarCompiler, tokenizer: Any
) -> None:
    matcher = compiler.matcher(GrammarSource("json_schema", json.dumps(PERSON)))
    assert follows(matcher, tokenizer.encode('{"name": "Bo", "age": 3}', add_special_tokens=False))
    assert np.flatnonzero(matcher.allowed()).tolist() == [EOS]
    assert not matcher.ended
    matcher.push(EOS)
    assert matcher.ended


def test_an_end_that_need_not_be_is_left_out_where_asked_for(
    compiler: GrammarCompiler, tokenizer: Any
) -> None:
    token = tokenizer.encode("a", add_special_tokens=False)
    for late in (False, True):
        matcher = compiler.matcher(GrammarSource("regex", "a{1,2}", ends_late=late))
        assert follows(matcher, token)
        assert matcher.allowed()[EOS] != late
        assert follows(matcher, token)
        assert matcher.allowed()[EOS]


def test_tokens_are_taken_back(compiler: GrammarCompiler, tokenizer: Any) -> None:
    """Also the end, tokens that were ruled out, and tokens behind them."""
    matcher = compiler.matcher(GrammarSource("json_schema", json.dumps(PERSON)))
    tokens = tokenizer.encode('{"name": "Bo", "age": 3}', add_special_tokens=False)
    masks = []
    for token in tokens:
        masks.append(matcher.allowed().copy())
        matcher.push(token)
    for token in (EOS, 5, 6):
        matcher.push(token)
    assert matcher.ended
    matcher.pop(3)
    assert not matcher.ended
    matcher.pop(2)
    matcher.push(300 if not masks[-2][300] else 301)
    assert matcher.ended
    matcher.pop(1)
    for mask in masks[-2::-1]:
        assert np.array_equal(matcher.allowed(), mask)
        if mask is not masks[0]:
            matcher.pop(1)


def test_matchers_of_one_grammar_do_not_see_each_other(compiler: GrammarCompiler, tokenizer: Any) -> None:
    source = GrammarSource("json_schema", json.dumps(PERSON))
    one, other = compiler.matcher(source), compiler.matcher(source)
    before = other.allowed()
    assert follows(one, tokenizer.encode('{"name": ', add_special_tokens=False)[:4])
    assert np.array_equal(other.allowed(), before)
    copied, at = one.copy(), one.allowed()
    copied.push(int(np.argmax(at)))
    assert np.array_equal(one.allowed(), at)


REFUSED: list[tuple[GrammarKind, str, str]] = [
    ("regex", "(abc", "unclosed group"),
    ("regex", "(" * 60_000 + "a" + ")" * 60_000, "grammar (regex) cannot be used"),
    ("lark", 'start: "a" foo', "unknown name"),
    ("lark", "start: " + "(" * 60_000 + '"a"' + ")" * 60_000, "too deeply nested"),
    ("json_schema", '{"type":', "grammar (json_schema) is no JSON"),
    ("json_schema", "[" * 100_000, "grammar (json_schema)"),
    ("json_schema", "[1]", "is a JSON list; it must be an object"),
    ("json_schema", '{"type": "foo"}', "Invalid type: foo"),
    ("json_schema", '{"type": "string", "not": {"type": "string"}}', "Unimplemented keys"),
    ("json_schema", "false", "is a JSON bool; it must be an object"),
    ("json_schema", '{"$ref": "#"}', "cannot be followed"),
    ("json_schema", '{"$ref": "http://example.com/x"}', "grammar (json_schema)"),
]


def test_grammars_that_are_refused(compiler: GrammarCompiler) -> None:
    for kind, text, complaint in REFUSED:
        with pytest.raises(GrammarError) as refused:
            compiler.matcher(GrammarSource(kind, text))
        assert complaint in str(refused.value)
        assert len(str(refused.value)) < 700


def test_a_schema_that_refers_to_itself(compiler: GrammarCompiler, tokenizer: Any) -> None:
    schema = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                "required": ["next"],
                "additionalProperties": False,
            }
        },
    }
    matcher = compiler.matcher(GrammarSource("json_schema", json.dumps(schema)))
    text = '{"next": ' * 30 + "null" + "}" * 30
    assert follows(matcher, tokenizer.encode(text, add_special_tokens=False))
    assert matcher.allowed()[EOS]


@pytest.mark.parametrize("depth", [150, 10_000])
def test_a_schema_that_is_nested_too_deeply_is_refused(compiler: GrammarCompiler, depth: int) -> None:
    schema = '{"items":' * depth + "{}" + "}" * depth
    with pytest.raises(GrammarError, match=r"recursion"):
        compiler.matcher(GrammarSource("json_schema", schema))


def test_a_grammar_that_is_too_complex_at_some_place_says_so(compiler: GrammarCompiler) -> None:
    """The limits of llguidance hold at each token; a matcher that has met one stays of no use."""
    matcher = compiler.matcher(GrammarSource("regex", "([a-z ]{0,200}[A-Z0-9 ]{0,200}){0,100}"))
    rng = np.random.default_rng(0)
    with pytest.raises(GrammarError, match=r"grammar \(regex\) is too complex"):
        for _ in range(300):
            allowed = np.flatnonzero(matcher.allowed())
            matcher.push(int(rng.choice(allowed[allowed != EOS])))


def test_a_model_without_an_end_follows_no_grammar(tokenizer: Any) -> None:
    with pytest.raises(GrammarError, match="no token that ends an answer"):
        GrammarCompiler(tokenizer, (), VOCAB).matcher(GrammarSource("json_object"))


def test_a_tokenizer_that_llguidance_cannot_read() -> None:
    class SlowTokenizer:
        def __len__(self) -> int:
            return 10

    with pytest.raises(GrammarError, match="its tokenizer, a SlowTokenizer, is not supported"):
        GrammarCompiler(SlowTokenizer(), {1}, 10).matcher(GrammarSource("json_object"))


def test_logits_beyond_the_tokenizer_are_ruled_out(tokenizer: Any) -> None:
    matcher = GrammarCompiler(tokenizer, {EOS}, VOCAB + 100).matcher(GrammarSource("regex", ".*"))
    allowed = matcher.allowed()
    assert allowed.shape == (VOCAB + 100,)
    assert not allowed[VOCAB:].any()


def test_a_vocabulary_is_freed_with_its_last_matcher(tokenizer: Any) -> None:
    """It is large, so it must not wait for a collection of objects that refer to each other."""
    gc.disable()
    try:
        matcher = GrammarCompiler(tokenizer, {EOS}, VOCAB).matcher(GrammarSource("regex", "ab"))
        held = [weakref.ref(each) for each in gc.get_objects() if isinstance(each, GrammarVocabulary)]
        assert matcher.allowed().any()
        del matcher
        assert [each() for each in held].count(None) == 1
    finally:
        gc.enable()


def test_several_threads_compile_at_once(compiler: GrammarCompiler) -> None:
    found: list[int] = []

    def compile_many(first: int) -> None:
        for number in range(first, first + MAX_COMPILED):
            matcher = compiler.matcher(GrammarSource("regex", f"a{{{number % 20 + 1}}}"))
            found.append(int(matcher.allowed().sum()))

    threads = [threading.Thread(target=compile_many, args=(first,)) for first in (0, 3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4 * MAX_COMPILED
