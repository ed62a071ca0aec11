"""Text that cannot be sent is refused by name."""

from __future__ import annotations

import pytest

from flowedge.core.errors import BadRequestError
from flowedge.core.plain_text import checked_utf8


def test_half_a_character_is_refused_with_its_place() -> None:
    assert checked_utf8("Küche 😀", "the prompt") == "Küche 😀"
    with pytest.raises(BadRequestError, match="the prompt is not valid UTF-8: its character 3 is byte 0xff"):
        checked_utf8("ab\udcff", "the prompt")
