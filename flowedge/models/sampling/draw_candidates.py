"""The few tokens of each row that can be drawn, found on the device of the logits.

A token's score is l + T g, from its logit l, the temperature T and its noise g. The device scores all tokens
in float32 and selects the best of them. On the host, the exact score in float64 decides among the selected,
so that draws are equal bit for bit wherever the logits are. A row is marked where the selection, or the
border of top-p, might be another in exact arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from flowedge.core.gumbel_noise import gumbel_noise_of
from flowedge.core.sampling import SamplingParams
from flowedge.models.host.copies import to_host
from flowedge.models.sampling.device_noise import LARGEST_NOISE, NOISE_ERROR, near_noise

SELECTED = 8  # tokens of each row; two scores are rarely within the error of one another
LARGEST_TEMPERATURE = 1e30  # above, scores exceed the range of float32
UNDECIDED = -1  # the draw that needs exact arithmetic over all tokens
_MASS_ERROR = 1e-5  # of the sums of probabilities that decide on top-p
_ROUNDING = 2.0**-21  # a bound of the relative error of a score, with room
_ROWS = 16  # that are scored at once, because the noise takes several int64 arrays of all tokens


@dataclass(frozen=True, eq=False)
class DrawCandidates:
    """The tokens of each of n rows that can be drawn.

    Attributes:
        tokens: int32 [n, c]; logits: float32 [n, c], -inf for a token that the filters remove.
        sure: bool [n, c], whether the token is within the filters; where it is not, it may be.
        complete: bool [n], whether the drawn token is among the candidates.
    """

    tokens: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32]
    sure: npt.NDArray[np.bool_]
    complete: npt.NDArray[np.bool_]

    def draw(self, row: int, params: SamplingParams, position: int) -> int:
        """The token drawn at a position after a row, or UNDECIDED. Of equal scores, the lowest id wins."""
        present = np.isfinite(self.logits[row])
        if not self.complete[row] or not present.any():
            return UNDECIDED
        order = np.argsort(self.tokens[row][present])
        tokens = self.tokens[row][present][order].astype(np.int64)
        scores = self.logits[row][present][order].astype(np.float64)
        if not params.greedy:
            scores = scores / params.temperature + gumbel_noise_of(params.seed, position, tokens)
        best = int(np.argmax(scores))
        return int(tokens[best]) if self.sure[row][present][order][best] else UNDECIDED


def find_candidates(logits: torch.Tensor, streams: torch.Tensor, params: SamplingParams) -> DrawCandidates:
    """Select the candidates of each row, with one copy to the host.

    Args:
        logits: float32 [n, vocab]; streams: int64 [n], of the drawn positions (see noise_streams).
        params: with a temperature of at most LARGEST_TEMPERATURE.
    """
    select = _most_likely if params.greedy else _best_scored
    chunks = [slice(first, first + _ROWS) for first in range(0, len(logits), _ROWS)]
    parts = [select(logits[chunk], streams[chunk], params) for chunk in chunks]
    return DrawCandidates(*to_host(*(torch.cat(column) for column in zip(*parts, strict=True))))


Selection = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _most_likely(logits: torch.Tensor, _streams: torch.Tensor, _params: SamplingParams) -> Selection:
    """The likeliest token of each row, and the lowest id of equals, which argmax on CUDA does not promise."""
    vocab = logits.shape[-1]
    ids = torch.arange(vocab, dtype=torch.int32, device=logits.device)
    best = logits.amax(dim=-1, keepdim=True)
    token = torch.where(logits == best, ids, vocab).amin(dim=-1, keepdim=True)
    complete = token[:, 0] < vocab  # not so where a logit is no number
    return token, best, torch.ones_like(best, dtype=torch.bool), complete


def _best_scored(logits: torch.Tensor, streams: torch.Tensor, params: SamplingParams) -> Selection:
    temperature = params.temperature
    least_sure, least = _filter_bounds(logits, params)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    scores = torch.add(logits, near_noise(streams, ids), alpha=temperature)
    scores = torch.where(logits >= least, scores, -torch.inf)
    best, tokens = torch.topk(scores, min(SELECTED, logits.shape[-1]), dim=-1)
    chosen = logits.gather(-1, tokens)
    error = NOISE_ERROR * temperature + _ROUNDING * (best[:, 0].abs() + 2 * LARGEST_NOISE * temperature)
    complete = best[:, -1] < best[:, 0] - 2 * error
    if best.shape[-1] == logits.shape[-1]:
        complete = torch.isfinite(best[:, 0])
    complete &= torch.isfinite(logits.amax(dim=-1))  # the filters would hide NaN, so the host has to look
    left = torch.where(torch.isfinite(best), chosen, -torch.inf)
    return tokens.to(torch.int32), left, chosen > least_sure, complete


def _filter_bounds(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Bounds [n, 1] of the filters: every logit above the first is kept, every one below the second removed.

    They differ where rounding decides whether top-p keeps a token, and where tokens of equal logits are at
    its border. The reference keeps some of these tokens, by a sort that is not stable.
    """
    least = torch.full_like(logits[:, :1], -torch.inf)
    if params.top_k:
        least = torch.topk(logits, min(params.top_k, logits.shape[-1]), dim=-1).values[:, -1:]
    below_least = torch.nextafter(least, torch.full_like(least, -torch.inf))
    if params.top_p == 1:
        return below_least, least
    ordered = torch.sort(logits, dim=-1, descending=True).values
    kept = torch.where(ordered >= least, ordered, -torch.inf)
    shares = torch.exp((kept - kept[:, :1]) / params.temperature).double()
    before = (shares.cumsum(dim=-1) - shares) / shares.sum(dim=-1, keepdim=True)
    error = min(_MASS_ERROR, params.top_p / 2)
    surely = (before < params.top_p - error).sum(dim=-1, keepdim=True)
    perhaps = (before < params.top_p + error).sum(dim=-1, keepdim=True)
    first_unsure = ordered.gather(-1, surely.clamp(max=ordered.shape[-1] - 1))
    sure = torch.where(surely < ordered.shape[-1], first_unsure, -torch.inf)
    return torch.maximum(sure, below_least), torch.maximum(
        ordered.gather(-1, (perhaps - 1).clamp(min=0)), least
    )
