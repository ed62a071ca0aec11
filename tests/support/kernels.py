"""The builds of the kernels that run on this machine, and their absence."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from flowedge.device import kernel_library as library
from flowedge.device.kernel_builds import Build, builds_of
from flowedge.models.block import LayerBlock
from flowedge.models.experts import MixtureMlp
from flowedge.models.row_functions import Activate

FOLDER = Path(library.__file__).parents[1] / "kernels"
RUNNING = [
    build
    for build in builds_of(platform.machine())
    if build.flags <= library.usable_flags() and (FOLDER / build.file_name).exists()
]

# torch's CPU loops compute whole vectors at a time, and single elements at the end of a thread's share by
# another exponential function. So rows begin at vectors, and pieces are too small to be shared by threads.
_VECTOR = 64  # elements of two vectors in 16 bits
_PIECE = 32768 - _VECTOR  # from 32,768 elements on, torch divides a loop among threads


@contextmanager
def kernels_of(build: Build, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute with a build instead of the most demanding."""
    with monkeypatch.context() as patch:
        patch.setattr(library, "cpu_flags", lambda: build.flags)
        library.forget_library()
        yield
    library.forget_library()


@contextmanager
def without_kernels() -> Iterator[None]:
    """Compute all layers by torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(library.OFF, "off")
        library.forget_library()
        yield
    library.forget_library()


@contextmanager
def exact_by_torch() -> Iterator[None]:
    """Compute all layers by torch, and exact ones on a CPU as on a GPU: in the order of positions."""

    def find_exactness(block: LayerBlock) -> None:
        for layer in (layer for layer in block.layers if layer.has_mlp):
            mlp = layer.mlp.experts if isinstance(layer.mlp, MixtureMlp) else layer.mlp
            mlp.activation = whole_vectors(mlp.activation)  # CPUs round an element by where it is
        block._test_exactness()  # noqa: SLF001 (its unit tests run on CPUs)

    with without_kernels(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayerBlock, "_find_exactness", find_exactness)
        yield


def whole_vectors(activation: Activate) -> Activate:
    """Return an activation whose result for an element does not depend on the element's place, on CPUs."""
    return partial(_whole_vectors, activation)


def _whole_vectors(activation: Activate, inputs: torch.Tensor) -> torch.Tensor:
    """Compute the activation of inputs [..., n] in pieces that are whole vectors."""
    width = inputs.shape[-1]
    padded = functional.pad(inputs, (0, -width % _VECTOR))
    if padded.numel() <= _PIECE or not inputs.is_cpu or torch.get_num_threads() == 1:
        return activation(padded)[..., :width]
    flat = padded.reshape(-1)
    output = torch.empty_like(flat)
    for start in range(0, len(flat), _PIECE):
        output[start : start + _PIECE] = activation(flat[start : start + _PIECE])
    return output.view(padded.shape)[..., :width]
