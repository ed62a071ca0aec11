"""The true path of a request: the tokens that the target draws, and the hidden states they are drawn from.

The prompt, the sampling and the seed alone determine it. So one computation serves every strategy
and every emulated model.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from flowedge.core.arrays import IntArray
from flowedge.core.messages import CONTEXT
from flowedge.core.sampling import SamplingParams
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.lm_head import LMHead
from flowedge.models.sampling.token_sampler import TokenSampler
from flowedge.models.taps import Taps

FORMAT = 1
PREFILL_ROWS = 128
NO_TOKEN = -1  # drawn beyond the end of the output


@dataclass(frozen=True, eq=False)
class TruePath:
    """A finished generation.

    Attributes:
        prompt_tokens: number of `tokens` that belong to the prompt.
        tokens: int64 [t], the prompt and the drawn tokens.
        features: float32 [t - 1, width], the final hidden state and the tapped ones of every row. The last
            token's row is never needed.
    """

    prompt_tokens: int
    tokens: IntArray
    features: npt.NDArray[np.float32]

    def draw(self, position: int) -> int:
        """Return the token at an absolute position, or NO_TOKEN beyond the end."""
        return int(self.tokens[position]) if position < len(self.tokens) else NO_TOKEN


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
        ids = torch.tensor(chunk, dtype=torch.int64)
        hidden = block.forward(ids, rows, cache, done, done, parents, lambda: False, taps)
        assert hidden is not None
        features.append(hidden)
        done += len(chunk)
        if done < len(tokens):
            continue
        token = sampler.draw(head.logits(hidden[-1:, : head.hidden_size])[0], done)
        tokens.append(token)
        if token in eos or len(tokens) - len(prompt) == max_new_tokens:
            stacked: npt.NDArray[np.float32] = torch.cat(features).float().numpy()
            return TruePath(len(prompt), np.array(tokens, dtype=np.int64), stacked)


class PathStore:
    """True paths on disk, by a digest of everything that determines them."""

    def __init__(
        self,
        directory: Path,
        checkpoint: Checkpoint,
        head: LMHead,
        taps: Taps,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Keep the paths of a model that is computed in `dtype`.

        taps: layers whose inputs are stored with the hidden states (see models/taps.py).
        """
        self._taps = taps
        self._dtype = dtype
        self._directory = directory
        self._checkpoint = checkpoint
        self._head = head
        self._block: LayerBlock | None = None

    def path(
        self, prompt: Sequence[int], sampling: SamplingParams, max_new_tokens: int, eos: frozenset[int]
    ) -> TruePath:
        """Return the path of a request; compute it if it is not stored."""
        file = self._directory / f"{self.key(prompt, sampling, max_new_tokens, eos)}.npz"
        if file.is_file():
            with np.load(file, allow_pickle=False) as stored:
                return TruePath(int(stored["prompt_tokens"]), stored["tokens"], stored["features"])
        path = compute_path(self._whole(), self._head, prompt, sampling, max_new_tokens, eos, self._taps)
        self._directory.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{file.stem}.{os.getpid()}.part.npz")
        np.savez(part, prompt_tokens=path.prompt_tokens, tokens=path.tokens, features=path.features)
        part.replace(file)
        return path

    def _whole(self) -> LayerBlock:
        if self._block is None:
            layers = self._checkpoint.config.num_hidden_layers
            self._block = LayerBlock.load(self._checkpoint, 0, layers, dtype=self._dtype)
        return self._block

    def key(
        self, prompt: Sequence[int], sampling: SamplingParams, max_new_tokens: int, eos: frozenset[int]
    ) -> str:
        """Return a digest of everything that determines the path of a request."""
        content = {
            "format": FORMAT,
            "torch": torch.__version__,
            "checkpoint": self._checkpoint.fingerprint,
            "prompt": list(prompt),
            "sampling": asdict(sampling),
            "max_new_tokens": max_new_tokens,
            "eos": sorted(eos),
            "taps": self._taps,
            "dtype": str(self._dtype),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
