"""The decoder layer of block heads, and the convolutions of DFlash2 around its attention and its MLP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flowedge.drafting.block.block_settings import Convolution
from flowedge.drafting.heads.draft_head import AttentionContext, EagleAttention, HeadMlp
from flowedge.models.files.decoder_configs import LlamaDecoderConfig
from flowedge.models.row_functions import RmsNorm


class BlockConvolution(nn.Module):
    """A convolution before a part of a layer and one behind it, each over the rows of a block.

    A coefficient is a base, of each channel, and an addition that is computed from the row and shared by a
    group of channels. Both convolutions' additions are computed from the rows before the first.
    """

    def __init__(self, hidden: int, size: int, convolution: Convolution) -> None:
        """size: the rows of a block."""
        super().__init__()
        self._size, self._rows, self._group = size, convolution.rows, convolution.group
        self._groups = hidden // convolution.group
        self.base_kernel = nn.Parameter(torch.zeros(2, convolution.rows, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * convolution.rows * self._groups, bias=False)

    def around(self, rows: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the convolved result of `part` of convolved rows [..., blocks * size, hidden]."""
        added = self.kernel_projection(rows).view(*rows.shape[:-1], 2, self._rows, self._groups)
        inner = part(self._convolved(rows, 0, added))
        return self._convolved(inner, 1, added)

    def _convolved(self, rows: Tensor, side: int, added: Tensor) -> Tensor:
        """The sum of a row and the rows before it in its block, each times its coefficients.

        side: 0 before the part, 1 behind it.
        """
        blocks = rows.reshape(-1, self._size, self._groups, self._group)
        total = torch.zeros_like(blocks)
        for back in range(self._rows):
            base = self.base_kernel[side, back].view(self._groups, self._group)
            factor = base + added[..., side, back, :].reshape(-1, self._size, self._groups, 1)
            total = total + factor * F.pad(blocks[:, : self._size - back], (0, 0, 0, 0, back, 0))
        return total.view(rows.shape)


class BlockHeadLayer(nn.Module):
    """A decoder layer as in Qwen 3, or as in Llama, whose queries and keys have no norms."""

    def __init__(
        self,
        config: LlamaDecoderConfig,
        *,
        query_key_norms: bool = True,
        size: int = 0,
        convolution: Convolution | None = None,
    ) -> None:
        """size: the rows of a block, over which a head with a convolution convolves."""
        super().__init__()
        hidden = config.hidden_size
        self.input_layernorm = RmsNorm(hidden, eps=config.rms_norm_eps)
        self.self_attn = EagleAttention(config, query_key_norms=query_key_norms)
        self.post_attention_layernorm = RmsNorm(hidden, eps=config.rms_norm_eps)
        self.mlp = HeadMlp(config)
        wanted = None if convolution is None else partial(BlockConvolution, hidden, size, convolution)
        self.attention_conv = None if wanted is None else wanted()
        self.mlp_conv = None if wanted is None else wanted()

    def forward(self, hidden: Tensor, context: AttentionContext) -> Tensor:
        """Return [..., rows, hidden] for rows of this shape."""
        attend = partial(self.self_attn, context=context)
        hidden = hidden + _around(self.attention_conv, self.input_layernorm(hidden), attend)
        return hidden + _around(self.mlp_conv, self.post_attention_layernorm(hidden), self.mlp)


def _around(convolution: BlockConvolution | None, rows: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
    return part(rows) if convolution is None else convolution.around(rows, part)
