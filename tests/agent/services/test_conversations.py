"""Requests with a conversation in place of a prompt."""

from __future__ import annotations

import json

import grpc
import pytest

from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.text.tokenizer import encode_messages
from flowedge.v1 import generation_pb2 as pb
from flowedge.v1.generation_pb2_grpc import GenerationStub

TALK = [("user", "Name a river."), ("assistant", "The Elbe."), ("user", "Another.")]


def ask(address: str, *messages: tuple[str, str]) -> pb.Started:
    conversation = pb.Conversation(messages=[pb.ChatMessage(role=r, content=c) for r, c in messages])
    request = pb.GenerateRequest(conversation=conversation, options=json.dumps({"max_new_tokens": 2}))
    with grpc.insecure_channel(address) as channel:
        events = list(GenerationStub(channel).Generate(request, timeout=60))
    return next(event.started for event in events if event.HasField("started"))


def test_the_chat_template_is_applied_to_all_messages(cluster4: str) -> None:
    tokenizer = load_tokenizer(Checkpoint.open("bundled"))
    expected = encode_messages(tokenizer, [{"role": role, "content": content} for role, content in TALK])
    assert list(ask(cluster4, *TALK).prompt_ids) == expected


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ((), "does not end with a message of the user"),
        (TALK[:2], "does not end with a message of the user"),
        ([("robot", "x"), *TALK], "the role 'robot'"),
        ([("tool", "x"), *TALK], "a message of a tool follows no message that calls tools"),
        ([("user", "x")] * 1025, "1025 messages"),
        ([("system", "x"), *TALK], "takes no system message"),
        ([("user", "x" * 200_000), ("user", "x" * 100_000)], "300000 bytes"),
    ],
)
def test_conversations_that_are_refused(
    cluster4: str, messages: list[tuple[str, str]], complaint: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        ask(cluster4, *messages)
    assert complaint in refused.value.details()


def test_a_request_of_another_version_is_refused(cluster4: str) -> None:
    request = pb.GenerateRequest(prompt="Hi")
    request.MergeFromString(b"\x20\x09")  # max_new_tokens, when it was a field
    with grpc.insecure_channel(cluster4) as channel, pytest.raises(grpc.RpcError) as refused:
        list(GenerationStub(channel).Generate(request, timeout=60))
    assert "install the same version of FlowEdge on both" in str(refused.value)
