"""The garbage of a load is collected, however often the libraries are imported."""

from __future__ import annotations

import gc
import weakref

from flowedge.models.host.libraries import import_libraries


class Remains:
    """An object that refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_a_load_leaves_behind_is_collected() -> None:
    import_libraries()
    kept = weakref.ref(Remains())
    import_libraries()
    gc.collect()
    assert kept() is None
