"""Grammars for a model's tokenizer, compiled by llguidance."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from flowedge.core.errors import GrammarError
from flowedge.core.grammar import GrammarSource
from flowedge.text.grammar_matcher import GrammarMatcher

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_COMPILED = 16  # grammars that are held for later requests
_MAX_LEXER_STATES = 50_000  # of a grammar, each 1 to 2 KB
_MAX_STEP_ITEMS = 10_000  # of the parser, for one token
_MAX_MESSAGE = 500  # characters of llguidance's messages, which repeat the grammar
# Without free white space, which a model could write for ever and which forces no token. These separators
# are json.dumps's, which is how JSON on one line is written most.
SCHEMA_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_OBJECT_STYLE = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}"}


class GrammarCompiler:
    """Compiles grammars, and holds the latest. It may be called from several threads."""

    def __init__(self, tokenizer: Any, eos: Collection[int], vocab_size: int) -> None:
        """Compile for a tokenizer of transformers; nothing is read from it before the first grammar.

        Args:
            eos: token ids that end an answer; vocab_size: number of the model's logits.
        """
        self._tokenizer = tokenizer
        self._eos = frozenset(eos)
        self._vocab_size = vocab_size
        self._read: LLTokenizer | None = None
        self._compiled: OrderedDict[GrammarSource, GrammarMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, source: GrammarSource) -> GrammarMatcher:
        """Return a matcher at the beginning of an answer.

        Raises:
            GrammarError: when the grammar is wrong, no text or no end satisfies it, it exceeds a limit, or
                the tokenizer cannot be used.
        """
        with self._lock:
            compiled = self._compiled.pop(source, None) or self._compile(source)
            self._compiled[source] = compiled
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
            return compiled.copy()

    def _compile(self, source: GrammarSource) -> GrammarMatcher:
        from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415 (few requests have a grammar)

        if not self._eos:
            raise GrammarError(
                f"{source.parameter} cannot be followed: the model has no token that ends an answer"
            )
        limits = LLParserLimits(
            max_lexer_states=_MAX_LEXER_STATES, step_max_items=_MAX_STEP_ITEMS, verbose_errors=False
        )
        try:
            text = _llguidance_text(LLMatcher, source)
        except (ValueError, RecursionError) as error:  # such as a schema that is nested too deep
            raise GrammarError(f"{source.parameter} cannot be used: {_shortened(str(error))}") from error
        tokenizer = self._read_tokenizer()
        compiled = LLMatcher(tokenizer, text, log_level=0, limits=limits)
        if compiled.is_error():
            raise GrammarError(f"{source.parameter} cannot be used: {_shortened(compiled.get_error())}")
        matcher = GrammarMatcher(source, compiled, self._eos, self._vocab_size, tokenizer.vocab_size)
        matcher.allowed()  # refuses what no answer can satisfy
        return matcher

    def _read_tokenizer(self) -> LLTokenizer:
        """Return the tokenizer as llguidance reads it, which takes a second for a large vocabulary."""
        if self._read is None:
            from llguidance.hf import from_tokenizer  # noqa: PLC0415

            size = max(self._vocab_size, len(self._tokenizer), max(self._eos) + 1)
            try:
                self._read = from_tokenizer(self._tokenizer, n_vocab=size, eos_token=sorted(self._eos))
            except (ValueError, RuntimeError) as error:
                raise GrammarError(
                    f"grammars cannot be used with this model: its tokenizer, a "
                    f"{type(self._tokenizer).__name__}, is not supported ({_shortened(str(error))})"
                ) from error
        return self._read


def _llguidance_text(matcher: type[LLMatcher], source: GrammarSource) -> str:
    """Return a grammar as llguidance takes it.

    Raises:
        GrammarError: when a schema is no JSON.
    """
    match source.kind:
        case "lark":
            return matcher.grammar_from_lark(source.text)
        case "regex":
            return matcher.grammar_from_regex(source.text)
        case "json_object":
            return matcher.grammar_from_json_schema('{"type": "object"}', overrides=_OBJECT_STYLE)  # type: ignore[arg-type]
    try:
        schema = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{source.parameter} is no JSON: {_shortened(str(error))}") from error
    if not isinstance(schema, dict):
        raise GrammarError(f"{source.parameter} is a JSON {type(schema).__name__}; it must be an object")
    return matcher.grammar_from_json_schema(source.text, defaults=SCHEMA_STYLE)  # type: ignore[arg-type]


def _shortened(message: str) -> str:
    message = " ".join(message.split())
    return message if len(message) <= _MAX_MESSAGE else message[:_MAX_MESSAGE] + " ..."
