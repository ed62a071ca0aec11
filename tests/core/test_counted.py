"""Numbers of things have the right plural."""

from __future__ import annotations

from flowedge.core.plain_text import counted


def test_one_thing_and_several() -> None:
    assert counted(1, "stage") == "1 stage"
    assert counted(0, "stage") == "0 stages"
    assert counted(2, "copy", "copies") == "2 copies"
