"""The place of verification: its names, and the rule that chooses it."""

from __future__ import annotations

import pytest

from flowedge.core.errors import BadRequestError
from flowedge.core.verification import DRAFT_NODE, LAST_STAGE, cheaper_place, parse_verification


def test_names() -> None:
    assert [parse_verification(text) for text in ("", "auto", "draft-node", "last-stage")] == [
        "auto",
        "auto",
        "draft-node",
        "last-stage",
    ]
    with pytest.raises(BadRequestError, match="verification is 'here'; it must be auto, draft-node"):
        parse_verification("here")


def test_the_place_with_the_least_time_is_taken() -> None:
    assert cheaper_place(0.1, 0.02, 0.0) == LAST_STAGE
    assert cheaper_place(0.02, 0.1, 0.0) == DRAFT_NODE
    assert cheaper_place(0.02, 0.02, 0.0) == LAST_STAGE, "drafting waits for a draft node that verifies"
    assert cheaper_place(0.02, 0.035, 0.0) == DRAFT_NODE
    assert cheaper_place(0.02, 0.035, 0.01) == LAST_STAGE, "the link is spared"
