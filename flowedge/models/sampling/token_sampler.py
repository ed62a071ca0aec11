"""Draws of tokens from logits by the same rule as the reference's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from flowedge.core.arrays import IntArray
from flowedge.core.errors import NonFiniteError
from flowedge.core.gumbel_noise import gumbel_noise_of, noise_streams
from flowedge.core.sampling import SamplingParams
from flowedge.models.host.copies import to_device, to_host
from flowedge.models.sampling.draw_candidates import (
    LARGEST_TEMPERATURE,
    UNDECIDED,
    DrawCandidates,
    find_candidates,
)

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

    @property
    def temperature(self) -> float:
        return self._params.temperature

    @torch.inference_mode()
    def draw(self, logits: torch.Tensor, position: int) -> int:
        """Draw the token at an absolute position from the logits [vocab] of the row before it.

        Of equal scores, the lowest token id wins.

        Raises:
            NonFiniteError: when a logit is NaN or positive infinity, or all are negative infinity.
        """
        (row,) = to_host(logits if logits.dtype == torch.float64 else logits.float())
        likeliest = int(np.argmax(row))  # NaN is the largest for argmax
        if not np.isfinite(row[likeliest]):
            raise NonFiniteError.of(f"the LM head's logits for the token at position {position}")
        if self._params.greedy:
            return likeliest
        scores = torch.from_numpy(row.astype(np.float64))[None]
        for warper in self._warpers:
            scores = warper(_NO_TOKENS, scores)
        values = scores[0].numpy()
        tokens = np.flatnonzero(np.isfinite(values))
        noise = gumbel_noise_of(self._params.seed, position, tokens)
        return int(tokens[np.argmax(values[tokens] + noise)])

    def streams(self, positions: IntArray) -> IntArray:
        """What `draws` needs on the device of the logits: int64 [n] for n positions of drawn tokens."""
        return noise_streams(self._params.seed, positions).view(np.int64)

    @torch.inference_mode()
    def draws(
        self, logits: torch.Tensor, positions: IntArray, streams: torch.Tensor | None = None
    ) -> Callable[[int], int]:
        """Return a function that draws the token after a row; its result and its errors are those of `draw`.

        On a GPU all rows are drawn at once, with one small copy to the host. On a CPU a row is drawn when its
        token is asked for.

        Args:
            logits: float32 [n, vocab]; positions: int64 [n], of the drawn tokens.
            streams: the result of `streams` on the logits' device, if it is there already.
        """
        if streams is None and logits.device.type != "cpu":
            (streams,) = to_device(logits.device, self.streams(positions))
        return self.draws_of([self], logits, [positions], streams)[0]

    @staticmethod
    @torch.inference_mode()
    def draws_of(
        samplers: Sequence[TokenSampler],
        logits: torch.Tensor,
        positions: Sequence[IntArray],
        streams: torch.Tensor | None,
    ) -> list[Callable[[int], int]]:
        """Return the result of `draws` for rows of several samplers, which differ in their seeds alone.

        Args:
            logits: float32 [n, vocab], the rows of the first sampler first; positions: those of each sampler.
            streams: int64 [n], the results of `streams`, on the logits' device; not read on a CPU.
        """
        params = samplers[0]._params
        candidates: DrawCandidates | None = None
        if streams is not None and logits.device.type != "cpu" and params.temperature <= LARGEST_TEMPERATURE:
            candidates = find_candidates(logits, streams, params)
        draws: list[Callable[[int], int]] = []
        first = 0
        for sampler, own in zip(samplers, positions, strict=True):
            draws.append(partial(sampler._drawn, logits, candidates, own, first))
            first += len(own)
        return draws

    def _drawn(
        self,
        logits: torch.Tensor,
        candidates: DrawCandidates | None,
        positions: IntArray,
        first: int,
        row: int,
    ) -> int:
        """Draw the token after a row, which is row `first + row` of the logits and of the candidates."""
        position, token = int(positions[row]), UNDECIDED
        if candidates is not None:
            token = candidates.draw(first + row, self._params, position)
        return self.draw(logits[first + row], position) if token == UNDECIDED else token
