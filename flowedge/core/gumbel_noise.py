"""Position-keyed noise: it depends on the seed, the absolute position and the token id alone.

So no strategy can change a draw.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flowedge.core.arrays import FloatArray, IntArray

# Constants of splitmix64.
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB

_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(constant) for constant in (GOLDEN, MIX_1, MIX_2))


def gumbel_noise_of(seed: int, position: int, tokens: IntArray) -> FloatArray:
    """Return standard Gumbel noise g(seed, position, token) for the given token ids.

    Args:
        seed: 0 to MAX_SEED.
        position: absolute index of the token that is drawn; the first token after a prompt of P tokens has P.
        tokens: int64 [n] token ids.

    Returns:
        float64 [n], finite, from 53-bit uniforms of a counter-based hash (splitmix64 finaliser).
    """
    stream = noise_streams(seed, np.array([position]))
    bits = _mix(stream + tokens.astype(np.uint64) * _GOLDEN) >> np.uint64(11)
    uniform = np.maximum(bits, np.uint64(1)).astype(np.float64) * 2.0**-53
    noise: FloatArray = -np.log(-np.log(uniform))
    return noise


def noise_streams(seed: int, positions: IntArray) -> npt.NDArray[np.uint64]:
    """Return the hashes [n] of a seed and each of n positions, from which the noise of tokens is made."""
    # An array of one element: it wraps around silently where a scalar would warn.
    seeded = _mix(np.array([seed], dtype=np.uint64) + _GOLDEN)
    return _mix(seeded ^ (positions.astype(np.uint64) * _MIX_2 + _GOLDEN))


def gumbel_noise(seed: int, position: int, vocab_size: int) -> FloatArray:
    """Return the noise of every token of a vocabulary: float64 [vocab_size]."""
    return gumbel_noise_of(seed, position, np.arange(vocab_size, dtype=np.int64))


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    mixed: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
