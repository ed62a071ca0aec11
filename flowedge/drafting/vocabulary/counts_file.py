"""The file that keeps a model's token counts over restarts of the agent."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load, save

from flowedge.drafting.vocabulary.token_counts import TokenCounts

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
