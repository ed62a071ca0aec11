"""Every text of a request has a bound."""

from __future__ import annotations

import json

import pytest
from google.protobuf.message import Message

from flowedge.cluster.tls.receiving import LIMITS, MAX_TEXT, MAX_TEXTS, check_texts
from flowedge.core.errors import BadRequestError
from flowedge.v1 import agent_pb2, cluster_pb2, generation_pb2, measure_pb2, weights_pb2

LONG = "x" * (1 << 16)
BAD: list[Message] = [
    agent_pb2.StageRole(config=LONG + "x"),
    generation_pb2.GenerateRequest(request_id=LONG),
    generation_pb2.GenerateRequest(options=LONG * 17),
    agent_pb2.StageRole(weights=agent_pb2.WeightSources(peers=["a", LONG])),
    agent_pb2.StageRole(weights=agent_pb2.WeightSources(peers=[""] * (MAX_TEXTS + 1))),
    agent_pb2.DraftNodeRole(middles=[agent_pb2.Middle(addresses=[LONG])]),
    agent_pb2.DraftNodeRole(stages=[LONG]),
    agent_pb2.ReleaseRequest(pipeline="x" * (MAX_TEXT + 1)),
    cluster_pb2.JoinRequest(name=LONG),
    measure_pb2.MeasureLinkRequest(peer_id=LONG),
    weights_pb2.LookRequest(model=LONG),
]


@pytest.mark.parametrize("message", BAD, ids=lambda message: type(message).__name__)
def test_long_texts_are_refused(message: Message) -> None:
    with pytest.raises(BadRequestError, match="at most") as caught:
        check_texts(message)
    assert len(str(caught.value)) < 200


def test_usual_texts_and_long_prompts_are_taken() -> None:
    check_texts(
        generation_pb2.GenerateRequest(
            prompt=LONG, options=json.dumps({"stop": ["a"], "strategy_options": {"a": 1.0}})
        )
    )
    check_texts(agent_pb2.StageRole(config="x" * MAX_TEXT * 8, downstream="127.0.0.1:7070"))


def test_the_listed_fields_exist() -> None:
    files = [agent_pb2, generation_pb2, measure_pb2, weights_pb2]
    known = {
        field.full_name
        for file in files
        for message in file.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
    }
    assert LIMITS.keys() <= known
