"""Requests that are sent again, and those that are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flowedge.client import Client
from flowedge.core.errors import (
    BadRequestError,
    CapacityError,
    DeviceLostError,
    DrainingError,
    FlowEdgeError,
    PipelineNotReadyError,
)
from flowedge.v1 import generation_pb2 as pb
from tests.client.fake_node import Script, chunk, fail, finished, serving, started, waiting


def failing(times: int, error: FlowEdgeError, *first: pb.GenerateEvent) -> Script:
    """Return a script that fails so often, after some events, and then answers."""
    left = [times]

    def script(request: Any, context: Any) -> Iterator[pb.GenerateEvent]:
        if left[0]:
            left[0] -= 1
            yield from first
            fail(context, error)
        yield started()
        yield chunk("Hi", 5)
        yield finished()

    return script


def answered(script: Script, retries: int) -> tuple[str, int]:
    """Return the answer and the number of requests, by the blocking client."""
    with serving(script) as (node, address), Client(address, retries=retries) as client:
        return client.generate("Hi").result().text, len(node.requests)


@pytest.mark.parametrize(
    "error", [DeviceLostError("v1", "gone"), DrainingError("d0", "stops"), CapacityError.later("full", 0.1)]
)
def test_errors_that_another_try_can_mend(error: FlowEdgeError) -> None:
    with serving(failing(2, error, waiting(1))) as (node, address), Client(address, retries=2) as client:
        assert client.generate("Hi").result().text == "Hi"
    assert len({request.request_id for request in node.requests}) == 1
    assert len(node.requests) == 3
    for times in (1, 2):
        with pytest.raises(type(error)):
            answered(failing(times, error), times - 1)


def test_a_pipeline_that_is_being_set_up_is_waited_for() -> None:
    error = PipelineNotReadyError("d0", "its pipeline is being set up")
    error.retry_after_s = 0.05
    assert answered(failing(4, error), 1) == ("Hi", 5), "a wait takes no try"
    with pytest.raises(PipelineNotReadyError, match="is being set up"):
        answered(failing(1, error), 0)
    error.retry_after_s = 30
    with (
        serving(failing(9, error)) as (_, address),
        Client(address, retries=1) as client,
        pytest.raises(PipelineNotReadyError) as caught,
    ):
        client.generate("Hi", timeout_s=5).result()
    assert caught.value.retry_after_s == 30


@pytest.mark.parametrize("error", [BadRequestError("no"), CapacityError("never fits")])
def test_other_errors_are_final(error: FlowEdgeError) -> None:
    with pytest.raises(type(error)):
        answered(failing(1, error), 5)


def test_nothing_is_sent_again_after_its_start() -> None:
    script = failing(1, DeviceLostError("v1", "gone"), started())
    with pytest.raises(DeviceLostError):
        answered(script, 5)


def test_a_pause_ends_within_the_time_for_the_answer() -> None:
    script = failing(9, CapacityError.later("full", 30))
    with serving(script) as (_, address), Client(address, retries=5) as client, pytest.raises(CapacityError):
        client.generate("Hi", timeout_s=5).result()


def test_the_number_of_tries_is_checked() -> None:
    for wrong in (-1, 1.5, True):
        with pytest.raises(BadRequestError, match="retries is"):
            Client("a:1", retries=wrong)  # type: ignore[arg-type]
