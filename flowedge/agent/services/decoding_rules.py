"""Rules for the logits of an answer, and log-probabilities of its tokens, on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowedge.core.errors import BadRequestError
from flowedge.core.grammar_source import GrammarKind, GrammarSource
from flowedge.core.logit_rules import LogitRules
from flowedge.core.request import Tokens
from flowedge.text.token_bytes import TokenBytes
from flowedge.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from flowedge.engine.executors.draft_models import DraftModels

_KINDS: dict[str, GrammarKind] = {
    "json_object": "json_object",
    "json_schema": "json_schema",
    "lark": "lark",
    "regex": "regex",
}


def rules_of(message: pb.GenerateRequest, models: DraftModels, forced: str = "") -> LogitRules | None:
    """Return the rules that a request asks for, None if it asks for none; its grammar is compiled.

    forced: the grammar, in Lark, of the tool calls that the answer must make, if any.

    Raises:
        BadRequestError: when a value is out of range, or the grammar cannot be used.
    """
    asked = message.grammar
    if forced:
        if message.HasField("grammar"):
            raise BadRequestError("give either a grammar or a tool_choice that requires a call, not both")
        asked = pb.Grammar(lark=forced)
    rules = LogitRules(
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        grammar=_grammar(asked, ends_late=message.ignore_eos),
    )
    rules.check_tokens(models.vocab_size)
    if rules.grammar is not None:
        models.grammars.matcher(rules.grammar)
    return rules if rules else None


def eos_of(message: pb.GenerateRequest, models: DraftModels, rules: LogitRules | None) -> frozenset[int]:
    """Return the token ids that end the answer: with a grammar always those of the model."""
    grammar = None if rules is None else rules.grammar
    return frozenset() if message.ignore_eos and grammar is None else models.eos


def logprobs_of(drawn: Sequence[Tokens], token_bytes: TokenBytes) -> list[pb.TokenLogprob]:
    """Return the log-probabilities of the tokens that were put out; none if they were not asked for."""
    return [
        pb.TokenLogprob(
            token_id=each.token,
            logprob=each.logprob,
            text=token_bytes.of(each.token),
            likeliest=[
                pb.TokenLogprob(token_id=token, logprob=logprob, text=token_bytes.of(token))
                for token, logprob in each.likeliest
            ],
        )
        for tokens in drawn
        for each in tokens.likelihoods
    ]


def _grammar(message: pb.Grammar, *, ends_late: bool) -> GrammarSource | None:
    rule = message.WhichOneof("rule")
    if rule is None:
        return None
    text = "" if rule == "json_object" else getattr(message, rule)
    return GrammarSource(_KINDS[rule], text, ends_late)
