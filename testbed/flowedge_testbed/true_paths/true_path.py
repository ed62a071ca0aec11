"""The true path of a request: the tokens that the target draws, and the hidden states they are drawn from.

The prompt, the sampling and the seed alone determine it. So one computation serves every strategy
and every emulated model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from flowedge.core.arrays import IntArray
from flowedge.core.messages import CONTEXT
from flowedge.core.sampling import SamplingParams
from flowedge.models.block import LayerBlock
from flowedge.models.host.copies import to_host
from flowedge.models.host.payloads import to_tensor
from flowedge.models.lm_head import LMHead
from flowedge.models.sampling.token_sampler import TokenSampler
from flowedge.models.taps import Taps

PREFILL_ROWS = 128
NO_TOKEN = -1  # drawn beyond the end of the output


@dataclass(frozen=True, eq=False)
class TruePath:
    """A finished generation.

    Attributes:
        prompt_tokens: number of `tokens` that belong to the prompt.
        tokens: int64 [t], the prompt and the drawn tokens.
        features: float32 [t - 1, width], the final hidden state and the tapped ones of every row; of width 0
            where no drafter needs them. The last token's row is never needed.
    """

    prompt_tokens: int
    tokens: IntArray
    features: npt.NDArray[np.float32]

    def draw(self, position: int) -> int:
        """Return the token at an absolute position, or NO_TOKEN beyond the end."""
        return int(self.tokens[position]) if position < len(self.tokens) else NO_TOKEN


class PathSource(Protocol):
    """A source of true paths."""

    def path(
        self, prompt: Sequence[int], sampling: SamplingParams, max_new_tokens: int, eos: frozenset[int]
    ) -> TruePath:
        """Return the path of a request.

        Raises:
            BadRequestError: when the source cannot give it.
        """

    def key(
        self, prompt: Sequence[int], sampling: SamplingParams, max_new_tokens: int, eos: frozenset[int]
    ) -> str:
        """Return a digest of everything that determines the path of a request."""


@torch.inference_mode()
def compute_path(
    block: LayerBlock,
    head: LMHead,
    prompt: Sequence[int],
    sampling: SamplingParams,
    max_new_tokens: int,
    eos: frozenset[int],
    taps: Taps = (),
) -> TruePath:
    """Decode one token at a time over one block that holds all layers."""
    tokens = list(prompt)
    cache = block.new_cache(len(prompt) + max_new_tokens)
    features: list[torch.Tensor] = []
    sampler = TokenSampler(sampling, head.vocab_size)
    done = 0
    while True:
        chunk = tokens[done : done + PREFILL_ROWS]
        rows = np.arange(done, done + len(chunk))
        parents = rows - 1
        parents[:1] = CONTEXT
        ids = to_tensor(np.array(chunk, dtype=np.int32))
        hidden = block.forward(ids, rows, cache, done, done, parents, lambda: False, taps)
        assert hidden is not None
        features.append(hidden)
        done += len(chunk)
        if done < len(tokens):
            continue
        token = sampler.draw(head.logits(hidden[-1:, : head.hidden_size])[0], done)
        tokens.append(token)
        if token in eos or len(tokens) - len(prompt) == max_new_tokens:
            (stacked,) = to_host(torch.cat(features).float())
            return TruePath(len(prompt), np.array(tokens, dtype=np.int64), stacked)
