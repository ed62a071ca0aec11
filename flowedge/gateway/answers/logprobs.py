"""Log-probabilities of tokens in the shapes of the endpoints."""

from __future__ import annotations

import math
from codecs import getincrementaldecoder
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


class LegacyLogprobs:
    """Lists the tokens of one text as completions do, each with its place in the text."""

    def __init__(self, prompt: str = "") -> None:
        """prompt: the beginning of the text, if the text has the prompt."""
        self._prompt = prompt
        self._offset = 0
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def listed(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the next tokens of the text, in their order."""
        return {
            "tokens": [token_text(token) for token in tokens],
            "token_logprobs": [_legacy(token.logprob) for token in tokens],
            "top_logprobs": [self._likeliest(token) for token in tokens],
            "text_offset": [self._begin_of(token) for token in tokens],
        }

    def _begin_of(self, token: TokenLogprob) -> int:
        """Return the place where a token begins, and go on behind it.

        A special token is a part of the prompt if somebody has written it there, and never of an answer.
        """
        offset, text = self._offset, self._decoder.decode(token.text)
        if not token.special or self._prompt.startswith(token_text(token), offset):
            self._offset += len(text)
        if not offset and self._prompt and text.startswith(" ") and not self._prompt.startswith(" "):
            self._offset -= 1  # some tokenizers begin each text with a blank, which is no part of it
        return offset

    def _likeliest(self, token: TokenLogprob) -> dict[str, float] | None:
        if math.isnan(token.logprob):
            return None
        return {token_text(likely): _finite(likely.logprob) for likely in token.likeliest}


def _entry(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token_text(token), "logprob": _finite(token.logprob), "bytes": list(token.text)}


def _legacy(logprob: float) -> float | None:
    """Return a log-probability; None of a prompt's first token, which the model gives none."""
    return None if math.isnan(logprob) else _finite(logprob)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB
