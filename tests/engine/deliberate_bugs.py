"""Bugs that are put into the code, and histories that have to notice them."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.engine.histories import run_history

Patch: TypeAlias = pytest.MonkeyPatch
Bug: TypeAlias = Callable[[Patch], None]
FIRST_SEEDS = 300  # a bug has to show within these


def wrapped(cls: type, name: str, wrapper: Callable) -> Bug:
    """Puts `wrapper(original, self, *args)` in place of a method."""

    def patch(monkeypatch: Patch) -> None:
        original = getattr(cls, name)
        monkeypatch.setattr(cls, name, lambda self, *args, **kw: wrapper(original, self, *args, **kw))

    return patch


def replaced(module, name: str, function: Callable) -> Bug:
    return lambda monkeypatch: monkeypatch.setattr(module, name, function)


def check_noticed(name: str, known: int, bug: Bug, monkeypatch: Patch) -> None:
    """Hold that one of the first histories fails with a bug; begin with the one that is known to."""
    bug(monkeypatch)
    for seed in (known, *range(FIRST_SEEDS)):
        try:
            run_history(seed)
        except Exception as error:  # noqa: BLE001 - a bug may show as anything
            assert not _does_not_fit(error), f"the bug does not fit the code any more: {error!r}"
            if seed != known:
                warnings.warn(f"{name}: shows in history {seed}, in {known} not any more", stacklevel=1)
            return
    pytest.fail(f"{FIRST_SEEDS} histories have not noticed: {name}")


def _does_not_fit(error: Exception) -> bool:
    """Return whether the function that is the bug failed itself, as when an attribute was renamed."""
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    is_bug = raised_in == Path(__file__) or raised_in.name.startswith("test_")
    return isinstance(error, AttributeError | NameError | TypeError) and is_bug
