"""Requests are checked before they go over the wire."""

from __future__ import annotations

import pytest

from flowedge.client.request import GenerateOptions
from flowedge.core.errors import BadRequestError


def test_a_system_message_makes_a_conversation() -> None:
    assert GenerateOptions().to_request("Hi", None).WhichOneof("input") == "prompt"
    request = GenerateOptions(system="Be brief.").to_request("Hi", None)
    assert request.WhichOneof("input") == "conversation"
    assert [message.content for message in request.conversation.messages] == ["Be brief.", "Hi"]
    with pytest.raises(BadRequestError, match="goes with a prompt"):
        GenerateOptions(system="Be brief.").to_request(None, [1, 2])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"system": " "}, "the system message is empty"),
        ({"stop": ["x"] * 17}, "at most 16 stop strings"),
        ({"stop": ["x" * 257]}, "up to 256 characters"),
        ({"top_k": 1 << 40}, "top_k"),
    ],
)
def test_values_out_of_range(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadRequestError, match=complaint):
        GenerateOptions(**options)  # type: ignore[arg-type]
