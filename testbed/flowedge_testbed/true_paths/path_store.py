"""True paths that are computed when they are asked for, and stored in a directory."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from flowedge.core.sampling import SamplingParams
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.lm_head import LMHead
from flowedge.models.taps import Taps
from flowedge_testbed.true_paths.true_path import TruePath, compute_path

FORMAT = 1


class PathStore:
    """A PathSource that stores paths by a digest of everything that determines them."""

    def __init__(
        self,
        directory: Path,
        checkpoint: Checkpoint,
        head: LMHead,
        taps: Taps,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Store the paths of a model that is computed in `dtype`, on the device of its head.

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
            device = self._head.device
            self._block = LayerBlock.load(self._checkpoint, 0, layers, dtype=self._dtype, device=device)
        return self._block

    def key(
        self, prompt: Sequence[int], sampling: SamplingParams, max_new_tokens: int, eos: frozenset[int]
    ) -> str:
        """See PathSource.key."""
        device = self._head.device.type
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
            **({} if device == "cpu" else {"device": device}),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
