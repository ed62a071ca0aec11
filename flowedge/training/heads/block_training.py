"""Training of a block head, which predicts the tokens of all depths behind a token in one forward.

The recipe is that of DFlash (arXiv 2602.06036): blocks begin at tokens that are drawn anew for each update,
and a depth counts less the deeper it is. The tokens of a block are learnt from the target's distributions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from flowedge.drafting.block.block_head import BlockHead, save_block_head
from flowedge.drafting.block.block_settings import BlockLayer
from flowedge.models.rotary import Angles
from flowedge.training.documents import Batch
from flowedge.training.heads.head_training import HeadTraining, LossSums
from flowedge.training.target import TrainingTarget

ROWS_OF_TOKEN = 2  # rows of blocks for each token that is learnt


class BlockTraining(HeadTraining):
    """The training of a block head on rows with its taps."""

    head: BlockHead

    def __init__(
        self, head: BlockHead, target: TrainingTarget, compute: torch.dtype, ids: Tensor | None = None
    ) -> None:
        super().__init__(head, target, compute, ids)
        self._size, self._depths = head.blocks.size, head.blocks.depths
        # A depth counts exp(-depth / half the block), as published for blocks of 8 and of 16.
        self._weights = torch.exp(-torch.arange(self._depths, device=target.device) / (self._size / 2))

    def backward(self, batch: Batch, update_rows: int, noise: torch.Generator, sums: LossSums) -> None:
        learnt = int(batch.counted.sum())
        starts = self._starts(batch, learnt, noise)
        given = self._given(starts, noise)
        with self.products(batch.rows):
            states = self.predict(batch, starts, given)
        leaf = states.detach().requires_grad_()
        # The token of depth d behind a start at position a has position a + 1 + d.
        due = starts[..., None] + 1 + torch.arange(self._depths, device=starts.device)
        length = batch.counted.shape[1]
        within = due < length
        due = due.clamp(max=length - 1)
        texts = torch.arange(len(due), device=due.device)[:, None, None].expand_as(due)
        # A depth counts from the last given token on.
        depths = torch.arange(self._depths, device=starts.device) - given[..., None]
        chosen = within & batch.counted[texts, due] & (depths >= 0)
        weights = self._weights[depths.clamp(min=0)][chosen]
        share = learnt / update_rows / float(weights.sum())
        places = chosen.nonzero()
        for piece in self.pieces(len(places), self.num_tokens):
            text, block, depth = places[piece].unbind(dim=1)
            rows, position = leaf[text, block, depth], due[text, block, depth]
            self._backward_logits(rows, batch, text, position, share * weights[piece], sums)
        assert leaf.grad is not None, "some row is chosen"
        torch.autograd.backward(states, leaf.grad)

    def save(self, directory: Path) -> None:
        save_block_head(self.head, directory)

    def _starts(self, batch: Batch, learnt: int, noise: torch.Generator) -> Tensor:
        """Draw the positions int64 [texts, blocks] of first tokens of blocks, before tokens that count."""
        follows = batch.counted[:, 1:].clone()
        follows[:, 0] = False  # a text has something to learn from its third token on
        blocks = max(1, round(ROWS_OF_TOKEN * learnt / len(follows) / self._size))
        return torch.multinomial(follows.float(), blocks, replacement=True, generator=noise)

    def _given(self, starts: Tensor, noise: torch.Generator) -> Tensor:
        """Draw how many true tokens each block has in the place of mask tokens, int64 [texts, blocks].

        Half of the blocks of a head that predicts behind paths have some, the others of all heads none.
        """
        if self.head.blocks.pass_depths is None:
            return torch.zeros_like(starts)
        most = self._depths - 1
        drawn = torch.randint(-most, most + 1, starts.shape, generator=noise, device=noise.device)
        return drawn.clamp(min=0).to(starts.device)

    def predict(self, batch: Batch, starts: Tensor, given: Tensor) -> Tensor:
        """The states [texts, blocks, depths, hidden] of blocks that begin at `starts`.

        given: how many true tokens behind its first each block has, int64 [texts, blocks].
        """
        head, size, texts = self.head, self._size, len(starts)
        within = torch.arange(size, device=starts.device)
        places = (starts[..., None] + within).flatten(1)
        inside = places.clamp(max=batch.tokens.shape[1] - 1).cpu().numpy()
        true = np.take_along_axis(batch.tokens, inside, axis=1)
        known = (within <= given[..., None]).flatten(1).cpu().numpy()
        tokens = np.where(known, true, np.int32(head.blocks.mask_token))
        embedded = self._target.embed(tokens)
        fused = head.true_states(batch.rows)
        before = torch.arange(fused.shape[1], device=fused.device)[None].expand(texts, -1)
        of_text, of_blocks = head.rotation(fused, before), head.rotation(fused, places)
        masks = {layer: _blocks_mask(layer, starts, size, before.shape[1]) for layer in {*head.blocks.layers}}
        contexts = [
            _BlocksAttention(of_blocks, keys_values, masks[layer])
            for layer, keys_values in zip(head.blocks.layers, head.keys_values(fused, of_text), strict=True)
        ]
        states = head.predict(embedded, contexts).view(*starts.shape, size, -1)
        return states[:, :, size - self._depths :]

    def _backward_logits(
        self,
        states: Tensor,
        batch: Batch,
        texts: Tensor,
        places: Tensor,
        shares: Tensor,
        sums: LossSums,
    ) -> None:
        """Add the gradients of states [n, hidden] that predict tokens at `places` [n] of `texts` [n]."""
        with torch.no_grad():
            before = batch.rows[texts, places - 1, : self._target.lm_head.hidden_size]
            wanted = self.shared_logits(before).softmax(dim=-1)
        with self.products(states):
            own = self.head.lm_head
            logits = self.shared_logits(states) if own is None else self.of_tokens(own(states).float())
            if self.head.markov_head is not None:
                known = torch.from_numpy(batch.tokens.astype(np.int64)).to(states.device)
                logits = logits + self.of_tokens(self.head.markov_head(known[texts, places - 1]))
        losses = F.cross_entropy(logits.float(), wanted, reduction="none")
        loss = (shares * losses).sum()
        torch.autograd.backward(loss)
        sums.share += float(shares.sum())
        sums.token += loss.item()
        sums.agreed += float((shares * (logits.argmax(dim=-1) == wanted.argmax(dim=-1))).sum())


@dataclass(frozen=True)
class _BlocksAttention:
    """Attention of all blocks of some texts: to the text before each, and within it.

    Attributes:
        text: keys and values [2, texts, kv_heads, length, head_dim] of the texts.
        mask: bool [texts, 1, rows, length + rows].
    """

    rotation: Angles
    text: Tensor
    mask: Tensor

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float | None = None) -> Tensor:
        return F.scaled_dot_product_attention(
            queries,
            torch.cat((self.text[0], keys), dim=-2),
            torch.cat((self.text[1], values), dim=-2),
            attn_mask=self.mask,
            scale=scaling,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )


def _blocks_mask(layer: BlockLayer, starts: Tensor, size: int, length: int) -> Tensor:
    """What the rows of blocks see in a layer, bool [texts, 1, blocks * size, length + blocks * size]."""
    offsets = torch.arange(size, device=starts.device)
    rows = (starts[..., None] + offsets).flatten(1)  # positions
    first = starts.repeat_interleave(size, dim=1)
    block = torch.arange(starts.shape[1], device=starts.device).repeat_interleave(size)
    text = torch.arange(length, device=starts.device)
    before = text < first[..., None]
    within = (block[:, None] == block).expand(len(starts), -1, -1)
    if layer.causal:
        within = within & (rows[..., None] >= rows[:, None])
    if layer.window is not None:
        before = before & (text > rows[..., None] - layer.window)
        within = within & (rows[:, None] > rows[..., None] - layer.window)
    return torch.cat((before, within), dim=-1)[:, None]
