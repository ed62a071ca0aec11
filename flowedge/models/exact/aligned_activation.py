"""Activations whose result for an element does not depend on the element's place, on CPUs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import pad

# torch's CPU loops compute whole vectors at a time, and single elements at the end of a thread's share by
# another exponential function. So rows begin at vectors, and pieces are too small to be shared by threads.
_VECTOR = 64  # elements of two vectors in 16 bits
_PIECE = 32768 - _VECTOR  # from 32,768 elements on, torch divides a loop among threads
_MODULES = ("transformers.activations", "torch.nn.modules.activation")


class AlignedActivation(nn.Module):
    """An elementwise activation, computed in pieces that are whole vectors."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the activation of inputs [..., n], in their shape."""
        width = inputs.shape[-1]
        aligned = pad(inputs, (0, -width % _VECTOR))
        if aligned.numel() <= _PIECE or not inputs.is_cpu or torch.get_num_threads() == 1:
            return self._computed(aligned)[..., :width]
        flat = aligned.reshape(-1)
        output = torch.empty_like(flat)
        for start in range(0, len(flat), _PIECE):
            output[start : start + _PIECE] = self._computed(flat[start : start + _PIECE])
        return output.view(aligned.shape)[..., :width]

    def _computed(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.activation(inputs)
        return output


def align_activations(layer: nn.Module) -> None:
    """Replace every activation inside `layer` by an AlignedActivation of it."""
    for path, child in list(layer.named_modules()):
        if path and type(child).__module__ in _MODULES and not path.endswith(".activation"):
            layer.set_submodule(path, AlignedActivation(child))
