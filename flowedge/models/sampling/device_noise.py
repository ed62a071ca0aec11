"""The position-keyed Gumbel noise of core/sampling.py, computed on the device of a tensor.

The hash is exact: int64 wraps around as uint64 does. The logarithms are float32, so that the noise is within
NOISE_ERROR of the exact noise.
"""

from __future__ import annotations

import torch

from flowedge.core.gumbel_noise import GOLDEN, MIX_1, MIX_2

LARGEST_NOISE = 37.0  # of 53-bit uniforms, as an absolute value
# Measured: 5e-7 on a CPU. The rest is room for other kernels, which err by a few units in the last place.
NOISE_ERROR = 2e-5
_HALF = 1 << 52  # the hash that stands for the uniform 0.5


def signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit value."""
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN, _MIX_1, _MIX_2 = signed(GOLDEN), signed(MIX_1), signed(MIX_2)


def noise_hash(streams: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The 53-bit hashes [n, c] of c token ids, int64, for int64 [n] streams (see noise_streams)."""
    mixed = streams[:, None] + tokens * _GOLDEN
    mixed.bitwise_xor_(_shifted(mixed, 30)).mul_(_MIX_1)
    mixed.bitwise_xor_(_shifted(mixed, 27)).mul_(_MIX_2)
    mixed.bitwise_xor_(_shifted(mixed, 31))
    return _shifted(mixed, 11)


def near_noise(streams: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The noise [n, c] of int64 [c] token ids, float32, within NOISE_ERROR of the exact noise."""
    bits = noise_hash(streams, tokens).clamp_(min=1)
    scale = 2.0**-53
    # Near 1, a uniform is rounded to 1 in float32; its distance from 1 is not.
    upper = torch.log1p(((1 << 53) - bits).float().mul_(-scale))
    lower = torch.log(bits.float().mul_(scale))
    return torch.where(bits < _HALF, lower, upper).neg_().log_().neg_()


def _shifted(value: torch.Tensor, places: int) -> torch.Tensor:
    """The logical shift to the right; torch's own shift repeats the sign."""
    return (value >> places).bitwise_and_((1 << (64 - places)) - 1)
