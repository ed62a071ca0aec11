"""Draws of tokens from logits by the same rule as the reference's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from flowedge.core.sampling import SamplingParams, gumbel_noise_of

# The warpers' argument for the tokens so far, which these three warpers ignore.
_NO_TOKENS = torch.zeros((1, 0), dtype=torch.int64)


class TokenSampler:
    """The Gumbel-max rule with position-keyed noise, after transformers' own warpers.

    Logits are warped in float64 like the reference's: by temperature, then top-k, then top-p.
    """

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        self._params = params
        self._warpers: list[Any] = []
        if params.greedy:
            return
        self._warpers.append(TemperatureLogitsWarper(float(params.temperature)))
        if params.top_k:
            self._warpers.append(TopKLogitsWarper(min(params.top_k, vocab_size)))
        if params.top_p < 1:
            self._warpers.append(TopPLogitsWarper(params.top_p))

    @torch.inference_mode()
    def draw(self, logits: torch.Tensor, position: int) -> int:
        """Draw the token at an absolute position from the logits [vocab] of the row before it.

        Of equal scores, the lowest token id wins.
        """
        scores = logits.double().cpu()[None]
        for warper in self._warpers:
            scores = warper(_NO_TOKENS, scores)
        values = scores[0].numpy()
        if self._params.greedy:
            return int(np.argmax(values))
        tokens = np.flatnonzero(np.isfinite(values))
        noise = gumbel_noise_of(self._params.seed, position, tokens)
        return int(tokens[np.argmax(values[tokens] + noise)])
