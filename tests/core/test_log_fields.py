"""A log line has a bound, whatever others send."""

from __future__ import annotations

from flowedge.core.log_fields import ATTRIBUTE, MAX_TEXT, about


def test_fields_are_cut() -> None:
    fields = about(model="m" * (5 << 20), seconds=1.0)[ATTRIBUTE]
    assert len(fields["model"]) < MAX_TEXT + 40
    assert fields["model"].endswith(f"({5 << 20} characters)")
    assert fields["seconds"] == 1.0
