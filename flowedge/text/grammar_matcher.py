"""The state of a grammar along the tokens of an answer, kept by llguidance."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from flowedge.core.arrays import BoolArray
from flowedge.core.errors import GrammarError
from flowedge.core.grammar import GrammarSource

MAX_MESSAGE = 500  # characters of llguidance's messages, which repeat the grammar
_MAX_LEXER_STATES = 50_000  # of a grammar, each 1 to 2 KB
_MAX_STEP_ITEMS = 10_000  # of the parser, for one token
_SPECIAL = b"\xff"  # in front of a token that no text stands for, as llguidance marks special tokens

_TOKENIZE = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_uint32),
    ctypes.c_size_t,
)


class _VocabularyOptions(ctypes.Structure):
    """LlgTokenizerInitV2 of llguidance.h."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("vocab_size", ctypes.c_uint32),
        ("tok_eos", ctypes.c_uint32),
        ("token_lens", ctypes.c_void_p),
        ("token_bytes", ctypes.c_char_p),
        ("tokenizer_json", ctypes.c_char_p),
        ("tokenize_assumes_string", ctypes.c_bool),
        ("tokenize_fn", _TOKENIZE),
        ("use_approximate_greedy_tokenize_fn", ctypes.c_bool),
        ("tokenize_user_data", ctypes.c_void_p),
        ("slices", ctypes.c_void_p),
        ("tok_eos_extra", ctypes.c_void_p),
        ("tok_eos_extra_count", ctypes.c_uint32),
    )


class _MatcherOptions(ctypes.Structure):
    """LlgConstraintInit of llguidance.h, whose later releases may read more fields."""

    _fields_ = (
        ("tokenizer", ctypes.c_void_p),
        ("log_buffer_level", ctypes.c_uint32),
        ("log_stderr_level", ctypes.c_uint32),
        ("ff_tokens_ok", ctypes.c_bool),
        ("backtrack_ok", ctypes.c_bool),
        ("max_items_in_row", ctypes.c_size_t),
        ("initial_lexer_fuel", ctypes.c_uint64),
        ("step_lexer_fuel", ctypes.c_uint64),
        ("step_max_items", ctypes.c_size_t),
        ("max_lexer_states", ctypes.c_size_t),
        ("max_grammar_size", ctypes.c_size_t),
        ("precompute_large_lexemes", ctypes.c_bool),
        ("verbose_errors", ctypes.c_bool),
        ("later_fields", ctypes.c_byte * 256),
    )


@cache
def _library() -> Any:
    """Return llguidance's C functions.

    Its Python classes hold the interpreter while a vocabulary is read: 2.4 s for 262,144 tokens, in which
    no link of the device would show a sign of life. A C function lets the other threads run.
    """
    from llguidance import _lib  # noqa: PLC0415 (few requests have a grammar)

    library = ctypes.CDLL(_lib.__file__)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32
    for name, result, arguments in (
        ("llg_new_tokenizer_v2", pointer, (pointer, pointer, size)),
        ("llg_free_tokenizer", None, (pointer,)),
        ("llg_constraint_init_set_defaults", None, (pointer, pointer)),
        ("llg_new_matcher", pointer, (pointer, ctypes.c_char_p, ctypes.c_char_p)),
        ("llg_clone_matcher", pointer, (pointer,)),
        ("llg_free_matcher", None, (pointer,)),
        ("llg_matcher_get_error", ctypes.c_char_p, (pointer,)),
        ("llg_matcher_is_stopped", ctypes.c_bool, (pointer,)),
        ("llg_matcher_is_accepting", ctypes.c_bool, (pointer,)),
        ("llg_matcher_validate_tokens", number, (pointer, pointer, size)),
        ("llg_matcher_consume_token", number, (pointer, ctypes.c_uint32)),
        ("llg_matcher_rollback", number, (pointer, size)),
        ("llg_matcher_compute_mask_into", number, (pointer, pointer, size)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class GrammarVocabulary:
    """The tokens of a model as llguidance holds them, some 100 bytes each; grammars are compiled for them."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        special: frozenset[int],
        eos: Sequence[int],
        encode: Callable[[bytes], list[int]],
    ) -> None:
        """Read the tokens, which takes a second for 262,144 tokens. Other threads run meanwhile.

        Args:
            tokens: the bytes of each token, by its id; special: ids of tokens that no text stands for.
            eos: ids that end an answer, one at least.
            encode: returns ids of tokens whose bytes joined are the given ones. It is called, by the thread
                that uses a matcher, for what a grammar prescribes.

        Raises:
            GrammarError: when llguidance cannot use them.
        """
        self.size = len(tokens)
        self._callback = _tokenize_by(encode)
        marked = [_SPECIAL + token if number in special else token for number, token in enumerate(tokens)]
        lengths = np.array([len(token) for token in marked], dtype=np.uint32)
        others = np.array(eos[1:], dtype=np.uint32)
        options = _VocabularyOptions(
            struct_size=ctypes.sizeof(_VocabularyOptions),
            vocab_size=self.size,
            tok_eos=eos[0],
            token_lens=lengths.ctypes.data,
            token_bytes=b"".join(marked),
            tokenize_assumes_string=True,
            tokenize_fn=self._callback,
            tok_eos_extra=others.ctypes.data,
            tok_eos_extra_count=len(others),
        )
        problem = ctypes.create_string_buffer(MAX_MESSAGE)
        library = _library()
        self.handle = library.llg_new_tokenizer_v2(ctypes.byref(options), problem, len(problem))
        if not self.handle:
            raise GrammarError(f"the model's tokenizer is not supported ({shortened(problem.value)})")
        self._free = library.llg_free_tokenizer

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._free(self.handle)


def _tokenize_by(encode: Callable[[bytes], list[int]]) -> Any:
    """Return the C function by which llguidance encodes; it refers to no vocabulary, or that held itself."""

    def tokenize(_: Any, text: int, length: int, output: Any, most: int) -> int:
        ids = encode(ctypes.string_at(text, length))
        for place, token in enumerate(ids[:most]):
            output[place] = token
        return len(ids)

    return _TOKENIZE(tokenize)


class GrammarMatcher:
    """What a grammar allows after the tokens that were pushed; they can be popped again.

    An end token, and a token that the grammar rules out, ends the grammar: what follows is of no meaning.
    """

    def __init__(
        self,
        source: GrammarSource,
        handle: int,
        vocabulary: GrammarVocabulary,
        eos: frozenset[int],
        vocab_size: int,
    ) -> None:
        """Begin where a matcher of llguidance is, which is freed with this object.

        Args:
            eos: token ids that end an answer; vocab_size: number of the model's logits, at most the
                vocabulary's size.
        """
        self._source = source
        self._matcher = handle
        self._library = _library()
        self._vocabulary = vocabulary  # has to live as long as its matchers
        self._eos = eos
        self._ends = np.array(sorted(token for token in eos if token < vocab_size), dtype=np.int64)
        self._vocab_size = vocab_size
        self._behind = 0  # tokens since the grammar has ended

    @classmethod
    def compile(
        cls,
        source: GrammarSource,
        kind: str,
        text: str,
        vocabulary: GrammarVocabulary,
        eos: frozenset[int],
        vocab_size: int,
    ) -> GrammarMatcher:
        """Return the matcher at the beginning of an answer.

        kind, text: the grammar as llguidance takes it: "lark", "regex" or "json_schema", and its text.

        Raises:
            GrammarError: when the grammar is wrong or exceeds a limit, or no text satisfies it.
        """
        library, options = _library(), _MatcherOptions()
        library.llg_constraint_init_set_defaults(ctypes.byref(options), vocabulary.handle)
        options.log_buffer_level = options.log_stderr_level = 0
        options.max_lexer_states, options.step_max_items = _MAX_LEXER_STATES, _MAX_STEP_ITEMS
        options.verbose_errors = False
        # A text of C ends at its first NUL.
        content = text.replace("\0", "\\x00" if kind == "regex" else "\\u0000").encode()
        handle = library.llg_new_matcher(ctypes.byref(options), kind.encode(), content)
        matcher = cls(source, handle, vocabulary, eos, vocab_size)
        problem = library.llg_matcher_get_error(handle)
        if problem is not None:
            raise GrammarError(f"{source.parameter} cannot be used: {shortened(problem)}")
        matcher.allowed()  # refuses what no answer can satisfy
        return matcher

    def __del__(self) -> None:
        self._library.llg_free_matcher(self._matcher)

    def copy(self) -> GrammarMatcher:
        """Return a matcher in the same state, which goes on by itself."""
        handle = self._library.llg_clone_matcher(self._matcher)
        copied = GrammarMatcher(self._source, handle, self._vocabulary, self._eos, self._vocab_size)
        copied._behind = self._behind
        return copied

    @property
    def ended(self) -> bool:
        """Whether an end token, or a token that the grammar rules out, was pushed."""
        return self._behind > 0

    def push(self, token: int) -> None:
        """Go on by a token.

        Raises:
            GrammarError: when the grammar exceeds a limit here.
        """
        if self._behind or token in self._eos or not self._follows(token):
            self._behind += 1
        else:
            self._library.llg_matcher_consume_token(self._matcher, token)
        self._check()

    def pop(self, count: int) -> None:
        """Take back the last tokens."""
        behind = min(count, self._behind)
        self._behind -= behind
        if count > behind:
            self._library.llg_matcher_rollback(self._matcher, count - behind)

    def allowed(self) -> BoolArray:
        """Return which tokens may follow: bool [vocab_size]. The grammar must not have ended.

        Raises:
            GrammarError: when there is none, or the grammar exceeds a limit here.
        """
        words = np.zeros(-(-self._vocabulary.size // 32), dtype=np.uint32)
        self._library.llg_matcher_compute_mask_into(self._matcher, words.ctypes.data, words.nbytes)
        self._check()
        bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=self._vocab_size)
        allowed: BoolArray = bits.view(np.bool_)
        allowed[self._ends] = False
        goes_on = bool(allowed.any())
        accepts = self._library.llg_matcher_is_accepting(self._matcher)
        allowed[self._ends] = accepts and not (goes_on and self._source.ends_late)
        if not goes_on and not allowed.any():
            raise GrammarError(
                f"{self._source.parameter} cannot be followed: no token of the model continues the answer "
                "here, and it may not end"
            )
        return allowed

    def _follows(self, token: int) -> bool:
        if self._library.llg_matcher_is_stopped(self._matcher):
            return False
        one = ctypes.c_uint32(token)
        return bool(self._library.llg_matcher_validate_tokens(self._matcher, ctypes.byref(one), 1) == 1)

    def _check(self) -> None:
        problem = self._library.llg_matcher_get_error(self._matcher)
        if problem is not None:
            raise GrammarError(
                f"{self._source.parameter} is too complex, or cannot be followed: {shortened(problem)}"
            )


def shortened(message: bytes) -> str:
    """Return a message of llguidance as one line of text."""
    text = " ".join(message.decode(errors="replace").split())
    return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + " ..."
