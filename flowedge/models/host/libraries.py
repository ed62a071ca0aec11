"""The import of torch and transformers, which takes seconds and leaves a million objects for good."""

from __future__ import annotations

import gc
import importlib
from functools import cache

_LIBRARIES = ("torch", "transformers.configuration_utils", "transformers.modeling_rope_utils")


@cache  # only once: frozen objects are never collected, so each further freeze would keep garbage for good
def import_libraries() -> None:
    """Import torch and transformers, so that later imports of them cost nothing.

    Garbage collection is off meanwhile: it would take nearly half of the time and find next to nothing. The
    imported objects are frozen, so that later collections skip them and stay short.
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
