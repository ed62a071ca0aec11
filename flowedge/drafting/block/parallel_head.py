"""P-EAGLE (arXiv 2602.01469): an EAGLE-3 head that predicts the tokens of all depths in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flowedge.drafting.block.block_layer import BlockHeadLayer
from flowedge.drafting.block.block_settings import BlockWiring
from flowedge.drafting.heads.draft_head import AttentionContext
from flowedge.drafting.heads.eagle3_head import Eagle3Head, load_of_eagle3
from flowedge.models.files.decoder_configs import LlamaDecoderConfig

KIND = "P-EAGLE"


class ParallelHead(Eagle3Head):
    """A head whose block is mask tokens alone, with one learnt hidden state of the target for all of them.

    Its rows of the text are those of an EAGLE-3 head, and the last of them predicts the first token of a
    tree. Each row sees the rows before it. Behind the first layer there are plain decoder layers.

    Attributes:
        blocks: how its blocks are wired.
    """

    correction: None = None

    def __init__(
        self,
        config: LlamaDecoderConfig,
        draft_vocab: int,
        target_hidden: int,
        blocks: BlockWiring,
        own_embedding: bool = False,
        query_key_norms: bool = False,
    ) -> None:
        """Create a head; arguments as of Eagle3Head."""
        assert blocks.eagle is not None, "the wiring is that of such a head"
        super().__init__(config, draft_vocab, target_hidden, own_embedding, blocks.eagle, query_key_norms)
        self.blocks = blocks
        layers = range(1, len(blocks.layers))  # layer 0 is `midlayer`
        self.layers = nn.ModuleDict(
            {str(layer): BlockHeadLayer(config, query_key_norms=query_key_norms) for layer in layers}
        )
        self.mask_hidden = nn.Parameter(torch.zeros(1, blocks.eagle.taps * target_hidden))

    @cached_property
    def mask_state(self) -> Tensor:
        """The state [1, hidden] of the rows of mask tokens, in the place of that of a true row."""
        return self.fused(self.mask_hidden.view(1, -1, self.target_hidden_size).unbind(dim=1))

    def predict_rows(self, embedded: Tensor, hidden: Tensor, contexts: Sequence[AttentionContext]) -> Tensor:
        """Return the states [rows, hidden] whose logits predict the tokens behind rows.

        Args:
            embedded, hidden: as of StepHead.predict.
            contexts: what rows see in each layer.
        """
        rows: Tensor = self.midlayer(embedded, hidden, contexts[0])
        for layer, context in zip(self.layers.values(), contexts[1:], strict=True):
            rows = layer(rows, context)
        return self.finished(rows)

    @property
    def is_recordable(self) -> bool:
        return False


def load_parallel_head(
    directory: Path,
    settings: dict[str, Any],
    config: LlamaDecoderConfig,
    wiring: BlockWiring,
    dtype: torch.dtype,
    device: torch.device | str,
) -> ParallelHead:
    """Load a published P-EAGLE head's folder with these settings. Errors as of load_block_head."""
    make = partial(ParallelHead, config, blocks=wiring)
    return load_of_eagle3(make, directory, settings, config, dtype, device, KIND)
