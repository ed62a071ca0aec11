"""Memory of this process that nobody uses."""

from __future__ import annotations

import gc
import weakref

from flowedge.device.process import release_unused_memory


class Linked:
    """An object that refers to itself, as an error and its frames do."""

    def __init__(self) -> None:
        self.link = self


def test_what_only_refers_to_itself_is_freed() -> None:
    gc.disable()
    try:
        held = weakref.ref(Linked())
        assert held() is not None
        release_unused_memory()
        assert held() is None
    finally:
        gc.enable()
