"""The rotation of queries and keys, prepared once for all layers of a forward."""

from __future__ import annotations

import torch


class HeadRotation(tuple[torch.Tensor, torch.Tensor]):
    """The cosines and sines of rows [1, rows, size] as transformers' layers take them, and as ours do.

    Attributes:
        cos: [rows, 1, size], which is multiplied with all heads of a row.
        signed_sin: [rows, 1, size], the sines with the first half negated: transformers negates the first
            half of the turned head instead.
    """

    cos: torch.Tensor
    signed_sin: torch.Tensor

    def __new__(cls, cos: torch.Tensor, sin: torch.Tensor) -> HeadRotation:
        rotation = super().__new__(cls, (cos, sin))
        rotation.cos = cos[0].unsqueeze(1)
        signed = sin[0].clone()
        signed[:, : signed.shape[1] // 2].neg_()
        rotation.signed_sin = signed.unsqueeze(1)
        return rotation

    @classmethod
    def of(cls, rotation: tuple[torch.Tensor, torch.Tensor]) -> HeadRotation:
        """Return the rotation itself where it is prepared already."""
        return rotation if isinstance(rotation, cls) else cls(*rotation)

    def rotate(self, heads: torch.Tensor, into: torch.Tensor) -> None:
        """Write the rotated heads to `into`; both are [rows, heads, size].

        `heads` is overwritten. It may be `into`.
        """
        turned = heads.roll(heads.shape[2] // 2, 2).mul_(self.signed_sin)
        torch.add(heads.mul_(self.cos), turned, out=into)
