"""The memory of a load that failed is freed at once."""

from __future__ import annotations

import gc
import weakref

import pytest

from flowedge.agent.services.agent_service import release_frames
from flowedge.core.errors import CheckpointError


class Weights:
    """Something large."""


def test_nothing_waits_for_a_collection() -> None:
    held: list[weakref.ref[Weights]] = []

    def load() -> None:
        weights = Weights()
        held.append(weakref.ref(weights))
        try:
            raise ValueError("a bad header")
        except ValueError as error:
            raise CheckpointError("it cannot be read") from error

    gc.disable()
    try:
        with pytest.raises(CheckpointError) as caught:
            load()
        assert held[0]() is not None
        release_frames(caught.value)
        assert held[0]() is None
    finally:
        gc.enable()
