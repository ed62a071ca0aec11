"""The metadata of a GGUF model, each value checked for its type and range when it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flowedge.core.errors import CheckpointError
from flowedge.models.files.config_numbers import MAX_LAYERS

Value = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]

_MAX_COUNT = 1 << 31


@dataclass(frozen=True)
class Metadata:
    """The values of a file by key; keys that begin with "." belong to its architecture."""

    values: Mapping[str, Value]
    architecture: str

    def has(self, key: str) -> bool:
        return self._full(key) in self.values

    def count(self, key: str, default: int | None = None, *, least: int = 1, most: int = _MAX_COUNT) -> int:
        """An integer of at least `least` and at most `most`; `default` if the key is missing.

        Raises:
            CheckpointError: when the value is another one, or is missing and there is no default.
        """
        value = self._value(key, default)
        if type(value) is not int or not least <= value <= most:
            raise self._wrong(key, value, f"an integer from {least} to {most}")
        return value

    @property
    def layers(self) -> int:
        """The number of the model's layers, without those behind them that draft. Errors as `count`."""
        stored = self.count(".block_count", most=MAX_LAYERS)
        return stored - self.count(".nextn_predict_layers", 0, least=0, most=stored - 1)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; `default` if the key is missing. Raises what `count` raises."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        if not 0 < value < math.inf:
            raise self._wrong(key, value, "a finite number above 0")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A text; `default` if the key is missing. Raises what `count` raises."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a text")
        return value

    def token(self, key: str, vocab_size: int) -> int | None:
        """A token id; None if the key is missing. Raises what `count` raises."""
        if not self.has(key):
            return None
        value = self.count(key, least=0)
        if value >= vocab_size:
            raise self._wrong(key, value, f"a token id below {vocab_size}")
        return value

    def token_or_none(self, key: str, vocab_size: int) -> int | None:
        """A token id; None if the key is missing or names no token, as in files of fine-tuned models."""
        value = self.values.get(self._full(key))
        return value if type(value) is int and 0 <= value < vocab_size else None

    def _full(self, key: str) -> str:
        return self.architecture + key if key.startswith(".") else key

    def _value(self, key: str, default: float | str | None) -> Value:
        value = self.values.get(self._full(key), default)
        if value is None:
            raise CheckpointError(f"the metadata have no {self._full(key)}")
        return value

    def _wrong(self, key: str, value: Value, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self._full(key)} is {str(value)[:80]}, not {wanted}")
