"""Grammars for a model's tokenizer, compiled by llguidance."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from flowedge.core.errors import GrammarError
from flowedge.core.grammar import GrammarSource
from flowedge.text.grammar_matcher import GrammarMatcher, GrammarVocabulary
from flowedge.text.json_object import short_reason
from flowedge.text.token_bytes import TokenBytes

MAX_COMPILED = 16  # grammars that are held for later requests
# Without free white space, which a model could write for ever and which forces no token. These separators
# are json.dumps's, which is how JSON on one line is written most.
SCHEMA_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
OBJECT_STYLE = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}"}
_LEAD = "\x02"  # a character that no token has together with others


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
        self._vocabulary: GrammarVocabulary | None = None
        self._compiled: OrderedDict[GrammarSource, GrammarMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, source: GrammarSource) -> GrammarMatcher:
        """Return a matcher at the beginning of an answer.

        The first call reads the vocabulary, which takes a second or more for 262,144 tokens. Other threads
        run meanwhile.

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
        if not self._eos:
            raise GrammarError(
                f"{source.parameter} cannot be followed: the model has no token that ends an answer"
            )
        kind, text = _llguidance_text(source)
        if self._vocabulary is None:
            self._vocabulary = self._read_vocabulary()
        return GrammarMatcher.compile(source, kind, text, self._vocabulary, self._eos, self._vocab_size)

    def _read_vocabulary(self) -> GrammarVocabulary:
        tokenizer, table = self._tokenizer, TokenBytes(self._tokenizer)
        if not table.is_exact:
            raise GrammarError(
                f"grammars cannot be used with this model: its tokenizer, a "
                f"{type(tokenizer).__name__}, is not supported (its tokens are no bytes of the text)"
            )
        size = max(self._vocab_size, len(tokenizer), max(self._eos) + 1)
        tokens = [table.of(token) for token in range(size)]
        singles = {token: number for number, token in enumerate(tokens) if len(token) == 1}
        encode = partial(_ids_of, tokenizer.backend_tokenizer, table, singles)
        return GrammarVocabulary(tokens, table.added, sorted(self._eos), encode)


def _ids_of(backend: Any, table: TokenBytes, singles: Mapping[bytes, int], text: bytes) -> list[int]:
    """Return token ids whose bytes joined are the text: the tokenizer's, or else a token for each byte.

    Some tokenizers put a space in front of each text, or of its first token, although tokens precede the
    text here: then the ids behind a character that comes first are the text's.

    Args:
        singles: the id of each token that is one byte. Where one is missing, the list may be empty.
    """
    for lead in ("", _LEAD):
        ids: list[int] = backend.encode(lead + text.decode(errors="replace"), add_special_tokens=False).ids
        for start in range(min(3, len(ids))):
            if b"".join(map(table.of, ids[start:])) == text:
                return ids[start:]
    found = [singles.get(bytes([byte])) for byte in text]
    return [] if None in found else [token for token in found if token is not None]


def _llguidance_text(source: GrammarSource) -> tuple[str, str]:
    """Return the kind of a grammar and its text as llguidance takes them.

    Raises:
        GrammarError: when a schema is no JSON.
    """
    if source.kind in ("lark", "regex"):
        return source.kind, source.text
    if source.kind == "json_object":
        return "json_schema", json.dumps({"type": "object", "x-guidance": OBJECT_STYLE})
    try:
        schema = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{source.parameter} is no JSON: {short_reason(error)}") from error
    if not isinstance(schema, dict):
        raise GrammarError(f"{source.parameter} is a JSON {type(schema).__name__}; it must be an object")
    asked = schema.get("x-guidance")
    schema["x-guidance"] = {**SCHEMA_STYLE, **(asked if isinstance(asked, dict) else {})}
    return "json_schema", json.dumps(schema)
