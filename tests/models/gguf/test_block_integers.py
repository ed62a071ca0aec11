"""The integers of blocks and their scales are the weights that the gguf package makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import dequantize
from gguf.constants import GGMLQuantizationType

from flowedge.models.gguf.block_integers import level_format
from flowedge.models.gguf.block_types import BLOCK_TYPES
from flowedge.models.kernels.packing import BITS, multiples

# Bytes of a block that are numbers of 16 bits, which are to be finite.
HALVES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), slice(0, 2)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), slice(0, 4)),
    "Q6_K": slice(208, 210),
}
KINDS = [kind for kind in BLOCK_TYPES if level_format(kind) is not None]


def blocks_of(kind: str) -> np.ndarray:
    """Random rows of five blocks."""
    generator, size = np.random.default_rng(5), BLOCK_TYPES[kind].block_bytes
    blocks = generator.integers(0, 256, (7, 5, size), dtype=np.uint8)
    if kind == "MXFP4":
        blocks[:, :, 0] = generator.integers(100, 140, (7, 5))
    else:
        place = HALVES[kind]
        count = (place.stop - place.start) // 2
        blocks[:, :, place] = generator.uniform(0.001, 0.1, (7, 5, count)).astype(np.float16).view(np.uint8)
    return blocks


def test_every_type_that_is_multiplied_as_stored_is_looked_at() -> None:
    assert set(KINDS) == {*HALVES, "MXFP4"}


@pytest.mark.parametrize("kind", KINDS)
def test_levels_and_scales_are_the_weights(kind: str) -> None:
    blocks, form = blocks_of(kind), level_format(kind)
    assert form is not None
    expected = torch.from_numpy(dequantize(blocks.reshape(7, -1), GGMLQuantizationType[kind]).copy())
    levels, scales, zeros = form.unpack(torch.from_numpy(blocks))
    assert levels.dtype == torch.uint8 and int(levels.max()) < 1 << BITS[form.kind]
    assert (zeros is not None) == form.has_zeros
    grouped = multiples(levels, form.kind).unflatten(1, (-1, form.group)) * scales[..., None]
    weights = (grouped if zeros is None else grouped + zeros[..., None]).flatten(1)
    assert torch.allclose(weights, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))
    rounded = scales.to(form.scale_dtype).float()
    if kind in ("Q4_0", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"):  # a scale is one number of the file
        assert torch.equal(rounded, scales)
    else:
        assert torch.allclose(rounded, scales, rtol=2**-11, atol=2**-24)
