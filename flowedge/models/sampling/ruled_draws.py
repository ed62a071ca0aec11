"""Draws of tokens by rules that depend on the path, one token after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from flowedge.core.arrays import FloatArray
from flowedge.core.errors import NonFiniteError
from flowedge.core.sampling import LogitRules, TokenLikelihood
from flowedge.models.host.copies import to_host
from flowedge.models.sampling.path_rules import PathRules
from flowedge.models.sampling.token_sampler import TokenSampler


class RuledDraws:
    """The draws along one path, from the root of a draft tree.

    Attributes:
        likelihoods: of the tokens drawn so far, if the rules ask for them.
    """

    def __init__(
        self, sampler: TokenSampler, rules: LogitRules, path: PathRules, known: Sequence[int] | None = None
    ) -> None:
        """Begin at the root.

        Args:
            path: stands after the root's token; it follows the draws.
            known: tokens of the prompt that are taken in place of draws; the rules are about none of them.
        """
        self._known = None if known is None else iter(known)
        self.likelihoods: list[TokenLikelihood] = []
        self._sampler = sampler
        self._rules = rules
        self._path = path
        self._drawn: int | None = None

    @torch.inference_mode()
    def draw(self, logits: torch.Tensor, position: int) -> int:
        """Draw the token at an absolute position from the logits [vocab] of the next row of the path.

        Raises:
            BadRequestError: when the grammar allows no token, or exceeds a limit.
            NonFiniteError: as TokenSampler.draw, and when no token that the rules leave has a finite logit.
        """
        if self._drawn is not None:
            self._path.push(self._drawn)
        (row,) = to_host(logits if logits.dtype == torch.float64 else logits.float())
        if not np.isfinite(row.max()):  # which is NaN where one is
            raise NonFiniteError.of(f"the LM head's logits for the token at position {position}")
        if self._known is not None:
            token = next(self._known)
            self.likelihoods.append(token_likelihood(row, token, self._rules.logprobs or 0))
            return token
        scores: FloatArray = row.astype(np.float64)
        if self._rules.changes_draws:
            scores = scores.copy()
            self._path.apply(scores)
            if self._rules.min_p:
                least = scores.max() + self._sampler.temperature * np.log(self._rules.min_p)
                scores[scores < least] = -np.inf
        token = self._drawn = self._sampler.draw(torch.from_numpy(scores), position)
        if self._rules.logprobs is not None:
            self.likelihoods.append(token_likelihood(row, token, self._rules.logprobs))
        return token


def token_likelihood(logits: FloatArray, token: int, likeliest: int) -> TokenLikelihood:
    """Return the log-probability of a token by logits [vocab], and those of the likeliest tokens.

    Of equally likely tokens, the lowest id comes first.
    """
    exact = logits.astype(np.float64)
    exact = exact - exact.max()
    exact = exact - np.log(np.exp(exact).sum())
    best: list[int] = []
    if likeliest:
        least = np.partition(exact, -likeliest)[-likeliest] if likeliest < len(exact) else -np.inf
        found = np.flatnonzero(exact >= least)
        best = found[np.argsort(-exact[found], kind="stable")][:likeliest].tolist()
    return TokenLikelihood(token, float(exact[token]), tuple((each, float(exact[each])) for each in best))
