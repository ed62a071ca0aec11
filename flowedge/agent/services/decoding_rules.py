"""Rules for the logits of an answer, and log-probabilities of its tokens, on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowedge.core.generate_options import GenerateOptions
from flowedge.core.grammar import Grammar, GrammarSource
from flowedge.core.request import Tokens
from flowedge.core.sampling import LogitRules, TokenLikelihood
from flowedge.text.token_bytes import TokenBytes
from flowedge.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from flowedge.engine.executors.draft_models import DraftModels


def rules_of(
    options: GenerateOptions, models: DraftModels, prompt: Sequence[int] = (), forced: str = ""
) -> LogitRules | None:
    """Return the rules that a request asks for, None if it asks for none; its grammar is compiled.

    Args:
        prompt: token ids.
        forced: the grammar, in Lark, of the calls that the answer makes, which it has in place of the grammar
            that the options have.

    Raises:
        BadRequestError: when a value is out of range, or the grammar cannot be used.
    """
    asked = Grammar.lark(forced) if forced else options.grammar
    rules = LogitRules(
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logit_bias=tuple(sorted(options.logit_bias.items())),
        logprobs=options.logprobs,
        grammar=None if asked is None else GrammarSource(asked.rule, asked.text, options.ignore_eos),
        repetition_penalty=options.repetition_penalty,
        prompt_tokens=() if options.repetition_penalty == 1 else tuple(sorted(set(prompt))),
        min_p=options.min_p if options.temperature else 0.0,  # the likeliest token is drawn in any case
        min_tokens=options.min_tokens,
        ends=tuple(sorted(models.eos)) if options.min_tokens else (),
    )
    rules.check_tokens(models.vocab_size)
    if rules.grammar is not None:
        models.grammars.matcher(rules.grammar)
    return rules if rules else None


def eos_of(options: GenerateOptions, models: DraftModels, rules: LogitRules | None) -> frozenset[int]:
    """Return the token ids that end the answer: with a grammar always those of the model."""
    grammar = None if rules is None else rules.grammar
    return frozenset() if options.ignore_eos and grammar is None else models.eos


def logprobs_of(drawn: Sequence[Tokens], token_bytes: TokenBytes) -> list[pb.TokenLogprob]:
    """Return the log-probabilities of the tokens that were put out; none if they were not asked for."""
    return [logprob_of(each, token_bytes) for tokens in drawn for each in tokens.likelihoods]


def logprob_of(likelihood: TokenLikelihood, token_bytes: TokenBytes) -> pb.TokenLogprob:
    """Return the log-probability of a token, and those of the likeliest tokens in its place."""
    return pb.TokenLogprob(
        token_id=likelihood.token,
        logprob=likelihood.logprob,
        text=token_bytes.of(likelihood.token),
        special=token_bytes.is_special(likelihood.token),
        likeliest=[
            pb.TokenLogprob(token_id=token, logprob=logprob, text=token_bytes.of(token))
            for token, logprob in likelihood.likeliest
        ],
    )
