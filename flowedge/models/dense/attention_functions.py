"""The attention functions that dense layers call, by the name in their config, as in transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

AttentionFunction = Callable[..., tuple[Any, Any]]
"""A function with the arguments and the result of transformers' attention functions."""

ATTENTION_FUNCTIONS: dict[str, AttentionFunction] = {}
