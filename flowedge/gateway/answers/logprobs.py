"""Log-probabilities of tokens in the shapes of the endpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowedge.client import TokenLogprob

LEAST_LOGPROB = -9999.0  # in place of minus infinity, which JSON does not have


def token_text(token: TokenLogprob) -> str:
    """Return the text of a token; parts of a character, which a token may be, become U+FFFD."""
    return token.text.decode(errors="replace")


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Return the tokens as chat completions and responses list them."""
    return [
        {**_entry(token), "top_logprobs": [_entry(likely) for likely in token.likeliest]} for token in tokens
    ]


def legacy_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> tuple[dict[str, Any], int]:
    """Return the tokens as completions list them, and the offset behind them.

    Args:
        offset: characters of the answer before these tokens.
    """
    texts = [token_text(token) for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [
            {token_text(likely): _finite(likely.logprob) for likely in token.likeliest} for token in tokens
        ],
        "text_offset": offsets,
    }, offset


def _entry(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token_text(token), "logprob": _finite(token.logprob), "bytes": list(token.text)}


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB
