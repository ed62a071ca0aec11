"""What a load leaves behind can be collected, however often the libraries are asked for."""

from __future__ import annotations

import gc
import weakref

from flowedge.models.libraries import import_libraries


class Remains:
    """What only a collection frees, as it refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_what_a_load_leaves_behind_is_collected() -> None:
    import_libraries()
    kept = weakref.ref(Remains())
    import_libraries()
    gc.collect()
    assert kept() is None
