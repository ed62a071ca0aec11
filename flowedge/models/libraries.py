"""The import of torch and transformers: seconds, and a million objects that stay."""

from __future__ import annotations

import gc
import importlib
from functools import cache

_LIBRARIES = ("torch", "transformers.modeling_utils")


@cache  # what is frozen is never collected: again and again, it would keep the remains of each load for good
def import_libraries() -> None:
    """Imports both, so that later imports of them cost nothing; does nothing from the second call on.

    No garbage is collected meanwhile, which would take nearly half of the time and find next to none; later
    collections pass over what is there by then, so that they stay short.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        for name in _LIBRARIES:
            importlib.import_module(name)
        gc.freeze()
    finally:
        if collecting:
            gc.enable()
