"""How often a target draws each token, and the file that keeps these counts over restarts of the agent."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from flowedge.core.arrays import IntArray


class TokenCounts:
    """The number of times that each token was drawn."""

    def __init__(self, vocab_size: int, counts: IntArray | None = None) -> None:
        """Begin with `counts`, int64 [vocab_size] and not negative; without them nothing was drawn yet.

        Raises:
            ValueError: when the counts are of another shape or dtype, or negative.
        """
        if counts is None:
            counts = np.zeros(vocab_size, dtype=np.int64)
        if counts.shape != (vocab_size,) or counts.dtype != np.int64 or (counts < 0).any():
            raise ValueError(
                f"counts of {vocab_size} tokens are int64 and not negative; these are {counts.dtype} "
                f"{list(counts.shape)}"
            )
        self.counts = counts

    @property
    def vocab_size(self) -> int:
        return len(self.counts)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def add(self, tokens: npt.NDArray[np.integer[Any]]) -> None:
        """Count drawn tokens, int [n]; ids beyond the vocabulary are ignored."""
        known = tokens[(tokens >= 0) & (tokens < self.vocab_size)]
        np.add.at(self.counts, known, 1)

    def most_frequent(self, size: int) -> IntArray:
        """Return the `size` tokens that were drawn most often, int64, the lowest of equals first."""
        return np.argsort(-self.counts, kind="stable")[:size].astype(np.int64)

    def coverage(self, ids: IntArray) -> float:
        """Return the share of all drawn tokens that are among `ids`; 0 where nothing was drawn."""
        return float(self.counts[ids].sum() / max(self.total, 1))


_log = logging.getLogger(__name__)
_FOLDER = "token-counts"
_NAME = "counts"
_HEADER_BYTES = 1 << 12  # of a file beside its counts, at most


class CountsFile:
    """Token counts of one model, in a directory of the agent's state. Counts are only ever a hint."""

    def __init__(self, state: Path, fingerprint: str, vocab_size: int) -> None:
        """`fingerprint` is the model's; the file may not exist yet."""
        self.path = state / _FOLDER / f"{fingerprint}.safetensors"
        self._vocab_size = vocab_size

    def read(self) -> TokenCounts:
        """Return the stored counts; counts of 0 where there is no file, or none that can be used."""
        try:
            if self.path.stat().st_size > 8 * self._vocab_size + _HEADER_BYTES:
                raise ValueError(f"it is larger than counts of {self._vocab_size} tokens")
            return TokenCounts(self._vocab_size, load(self.path.read_bytes())[_NAME])
        except FileNotFoundError:
            pass
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            _log.warning("token counts in %s cannot be used and begin anew: %s", self.path, error)
        return TokenCounts(self._vocab_size)

    def write(self, counts: TokenCounts) -> None:
        """Replace the stored counts in one step. Where that fails, the log says so and they are kept."""
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(save({_NAME: counts.counts}))
            part.replace(self.path)
        except OSError as error:
            _log.warning("token counts cannot be written to %s: %s", self.path, error)
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
