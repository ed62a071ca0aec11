"""The plain model under rules: transformers' own generate, with the rules as its logits processors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
)

from flowedge.core.grammar import GrammarSource
from flowedge.core.sampling import LogitRules, SamplingParams
from flowedge.models.check.reference import ReferenceModel


class Rules(LogitsProcessor):
    """Biases, penalties and the mask of a grammar, from all tokens of the answer each time.

    Attributes:
        raw: the logits before each token, as the model gives them.
    """

    def __init__(
        self,
        rules: LogitRules,
        prompt_rows: int,
        grammar: Any,
        eos: Collection[int],
        temperature: float,
    ) -> None:
        """`grammar` is a fresh llguidance.LLMatcher, None without a grammar."""
        self._rules = rules
        self._temperature = temperature
        self._first = prompt_rows
        self._grammar = grammar
        self._eos = sorted(eos)
        self.raw: list[np.ndarray] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        answer = input_ids[0, self._first :].tolist()
        self.raw.append(scores[0].numpy().copy())
        scores = scores.double().clone()
        if self._rules.repetition_penalty != 1:
            scores = RepetitionPenaltyLogitsProcessor(self._rules.repetition_penalty)(input_ids, scores)
        for token, bias in self._rules.logit_bias:
            scores[0, token] += bias
        for token, count in Counter(answer).items():
            scores[0, token] -= self._rules.presence_penalty + self._rules.frequency_penalty * count
        if self._grammar is not None:
            scores[0, ~torch.from_numpy(self._mask(answer, scores.shape[-1]))] = -torch.inf
        if self._rules.min_tokens:
            ends = MinNewTokensLengthLogitsProcessor(self._first, self._rules.min_tokens, self._eos, "cpu")
            scores = ends(input_ids, scores)
        if self._rules.min_p and self._temperature:
            kept = MinPLogitsWarper(self._rules.min_p)(input_ids, scores / self._temperature)
            scores = scores.masked_fill(kept.isinf(), -torch.inf)
        return scores

    def _mask(self, answer: list[int], vocab: int) -> np.ndarray:
        matcher = self._grammar.deep_copy()
        assert matcher.consume_tokens(answer), "the answer does not follow the grammar"
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(mask, bitorder="little")[:vocab].astype(bool)
        allowed[self._eos] = False
        late = self._rules.grammar is not None and self._rules.grammar.ends_late
        allowed[self._eos] = matcher.is_accepting() and not (late and allowed.any())
        return allowed


def ruled_answer(
    model: ReferenceModel,
    prompt: tuple[int, ...],
    sampling: SamplingParams,
    count: int,
    rules: LogitRules,
    grammar: Any = None,
    eos: Collection[int] = (),
) -> tuple[tuple[int, ...], list[np.ndarray]]:
    """Return the tokens of the plain model under rules, and the raw logits before each of them."""
    processor = Rules(rules, len(prompt), grammar, eos, sampling.temperature)
    output = model.generate(prompt, sampling, count, eos, [processor])
    return tuple(output.token_ids), processor.raw


def llguidance_matcher(tokenizer: Any, source: GrammarSource, eos: Collection[int]) -> Any:
    """Return llguidance's own matcher for a grammar."""
    text = {
        "json_object": lambda: LLMatcher.grammar_from_json_schema(
            '{"type": "object", "x-guidance": {"whitespace_pattern": "[\\\\x20\\\\x0A\\\\x0D\\\\x09]{1,40}"}}'
        ),
        "json_schema": lambda: LLMatcher.grammar_from_json_schema(
            source.text,
            defaults={"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
        ),
        "lark": lambda: LLMatcher.grammar_from_lark(source.text),
        "regex": lambda: LLMatcher.grammar_from_regex(source.text),
    }[source.kind]()
    return LLMatcher(from_tokenizer(tokenizer, eos_token=sorted(eos)), text)
