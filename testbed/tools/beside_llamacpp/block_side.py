"""FlowEdge in one process: all layers and the LM head, without agents and links."""

from __future__ import annotations

import time

import numpy as np
import torch

from flowedge.engine.executors.draft_models import PREFILL_ROWS
from flowedge.models.attention.kv_cache import KVCache
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.exact.option import resolve_exact
from flowedge.models.host.payloads import torch_dtype
from flowedge.models.lm_head import LMHead
from flowedge.models.quant.quant_cache import QuantCache
from testbed.tools.beside_llamacpp.formats import Format

WARM_UPS = 2


class BlockSide:
    """A model's layers and its LM head, as an agent on a CPU loads them."""

    def __init__(self, checkpoint: Checkpoint, form: Format, quant_cache: QuantCache | None) -> None:
        dtype = torch_dtype(form.dtype)
        layers = int(checkpoint.config.num_hidden_layers)
        exact = resolve_exact("auto", "cpu")
        self._block = LayerBlock.load(
            checkpoint, 0, layers, quant=form.quant, dtype=dtype, quant_cache=quant_cache, exact=exact
        )
        self._head = LMHead.load(checkpoint, dtype, quant=form.quant)

    def decode_s(self, tokens: int, threads: int) -> tuple[float, float]:
        """Return the seconds of the layers, and of the LM head, of `tokens` tokens from an empty cache."""
        torch.set_num_threads(threads)
        cache, token = self._block.new_cache(tokens), torch.tensor([1])
        layers_s = head_s = 0.0
        for position in range(tokens):
            start = time.perf_counter()
            hidden = self._forward(token, cache, position)
            between = time.perf_counter()
            token = self._head.logits(hidden).argmax(dim=-1)
            layers_s += between - start
            head_s += time.perf_counter() - between
        return layers_s, head_s

    def prefill_s(self, tokens: int, threads: int) -> float:
        """Return the seconds of a prompt, in the chunks that a draft node sends, and of its last logits."""
        torch.set_num_threads(threads)
        cache = self._block.new_cache(tokens)
        ids = torch.randint(self._block.vocab_size, (tokens,), generator=torch.Generator().manual_seed(0))
        start = time.perf_counter()
        for first in range(0, tokens, PREFILL_ROWS):
            hidden = self._forward(ids[first : first + PREFILL_ROWS], cache, first)
        self._head.logits(hidden[-1:])
        return time.perf_counter() - start

    def rows_s(self, rows: int, cached: int, threads: int, repeats: int) -> list[float]:
        """Return the seconds of each forward of `rows` draft rows over `cached` rows, with their logits."""
        torch.set_num_threads(threads)
        cache = self._block.new_cache(cached + rows)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(self._block.vocab_size, (cached + rows,), generator=generator)
        self._forward(ids[:cached], cache, 0)
        seconds = []
        for _ in range(WARM_UPS + repeats):
            start = time.perf_counter()
            self._head.logits(self._forward(ids[cached:], cache, cached))
            seconds.append(time.perf_counter() - start)
        return seconds[WARM_UPS:]

    def _forward(self, ids: torch.Tensor, cache: KVCache, cached: int) -> torch.Tensor:
        """Compute a chain of rows over the `cached` rows, which are all context."""
        positions = np.arange(cached, cached + len(ids))
        parents = positions - 1
        parents[0] = -1  # the last row of the context
        hidden = self._block.forward(ids, positions, cache, cached, cached, parents, lambda: False)
        assert hidden is not None  # nothing aborts it
        return hidden
