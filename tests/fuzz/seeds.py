"""Valid messages of every RPC, which mutations start from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from google.protobuf.message import Message

from flowedge.core import messages as core
from flowedge.core.messages import (
    CONTEXT,
    Close,
    Credit,
    Drawing,
    Fault,
    Forget,
    Heartbeat,
    Open,
    Prefix,
    Prune,
    Segment,
    SegmentBatch,
    StageReport,
    StageTime,
    Tapped,
)
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.core.sampling import SamplingParams
from flowedge.protocol import wire
from flowedge.v1 import agent_pb2 as agent
from flowedge.v1 import generation_pb2 as generation
from flowedge.v1 import measure_pb2 as measure
from flowedge.v1 import pipeline_pb2 as pipeline
from flowedge.v1 import weights_pb2 as weights
from flowedge.version import PROTOCOL_VERSION
from tests.support.stage_config import stage_config


class SeedFrame(NamedTuple):
    """The head and the tail of a valid frame."""

    head: pipeline.Frame
    tail: bytes


def session_frames(session: str, width: int | None) -> list[SeedFrame]:
    """The life of a session on an in-band link: opened, prefilled, drafted, pruned, closed.

    width: of hidden states; None for token ids.
    """

    def payload(rows: int) -> np.ndarray:
        if width is None:
            return np.arange(5, 5 + rows, dtype=np.int32)
        return np.full((rows, width), 0.25, dtype=np.float32)

    prompt = np.arange(3, dtype=np.int64)
    draft = np.array([3, 4, 4]), np.array([CONTEXT, 3, 3])
    messages = [
        Open(session, 64),
        Segment(session, 0, 0, True, 0, prompt, prompt - 1, payload(3)),
        Segment(session, 1, 0, False, 3, *draft, payload(3)),
        Prune(session, 1, 6, 3, 1, np.array([3, 5])),
        Segment(session, 2, 1, False, 5, np.array([5]), np.array([4]), payload(1)),
        Heartbeat(9),
        Close(session, (StageReport("v0", 3, 6, 1, 1, 0, 0.5, 99),)),
    ]
    return [
        *_frames(messages),
        *_frames(_drawing(messages, first=width is None)),
        *_frames(_beside_another(session, payload)),
    ]


def _beside_another(session: str, payload: Callable[[int], np.ndarray]) -> Iterable[core.Message]:
    """Return messages of a session and another one, which begins with its rows and outlives it."""
    other, prompt = f"{session}-2", np.arange(3, dtype=np.int64)
    yield Open(session, 64, computed_alone=True)
    yield Segment(session, 0, 0, True, 0, prompt, prompt - 1, payload(3))
    yield Open(other, 64, prefix=Prefix(session, 2))
    rows = np.array([3]), np.array([2])
    of_other = Segment(other, 0, 0, True, 2, np.array([2]), np.array([1]), payload(1))
    yield SegmentBatch((Segment(session, 1, 0, True, 3, *rows, payload(1)), of_other))
    yield Close(session, kept=4)
    yield Forget(session)
    yield Close(other)


def _drawing(messages: list[core.Message], *, first: bool) -> Iterable[core.Message]:
    """Return the life of a session whose tokens the last stage draws, to the first stage or a later one."""
    for message in messages:
        match message:
            case Open():
                drawing = Drawing(SamplingParams(0.7, 5, 0.9, 3), 3, True, 9, frozenset([2]))
                yield replace(message, drawing=drawing, keeps_taps=True)
            case Segment() if not (first or message.committed):
                yield replace(message, tokens=np.arange(message.num_rows) + 5)
            case _:
                yield message


def _frames(messages: Iterable[core.Message]) -> list[SeedFrame]:
    return [_frame(message) for message in messages]


def _frame(message: core.Message) -> SeedFrame:
    """Return the frame of a message; that of draft rows is padded, as for an emulated device."""
    head, tail = wire.to_head(message), bytes(wire.payload_of(message))
    match message:
        case Segment() if not message.committed:
            last = head.segment
        case SegmentBatch():
            last = head.batch.segments[-1]
        case _:
            return SeedFrame(head, tail)
    last.padding = 7
    return SeedFrame(head, tail + bytes(last.padding))


def express_frames(session: str) -> list[SeedFrame]:
    """Messages that a draft node sends straight to a stage."""
    messages = (
        Prune(session, 1, 6, 3, 1, np.array([3, 5])),
        Prune(session, 2, 5, 4, 0, np.array([4])),
        Heartbeat(3),
        Close(session),
    )
    return _frames(messages)


def result_frames(session: str, width: int) -> list[SeedFrame]:
    """Messages that the last stage sends to the draft node, and replies of the first stage."""
    messages = (
        Segment(session, 0, 0, True, 0, np.arange(3), np.arange(3) - 1, np.full((3, width), 0.5, np.float32)),
        Segment(
            session,
            1,
            0,
            False,
            3,
            np.array([3, 4]),
            np.array([CONTEXT, 3]),
            np.full((1, width), 0.5, np.float32),
            drawn=np.array([9, -1]),
            stage_times=(StageTime(2, 0.01, 0.3), StageTime(0, 0.0)),
        ),
        Prune(session, 1, 4, 3, 1, np.array([3])),
        Tapped(session, width, np.full((1, width), 0.5, np.float32)),
        Credit(session),
        Fault(session, "v1", "device", "it is on fire"),
        Close(session, (StageReport("v1", 3, 6, 1, 1, 0, 0.5, 99),)),
        Open(session, 64),
    )
    return _frames(messages)


def generate_requests() -> list[Message]:
    """Requests that a draft node answers."""
    return [
        generation.GenerateRequest(
            prompt="What is a river?",
            options=json.dumps(
                {
                    "strategy": "autoregressive",
                    "max_new_tokens": 4,
                    "temperature": 0.7,
                    "top_p": 0.9,
                    "top_k": 5,
                    "seed": 3,
                    "stop": ["\n\n"],
                    "noise": "plain",
                }
            ),
        ),
        generation.GenerateRequest(
            conversation=generation.Conversation(
                messages=[
                    generation.ChatMessage(role="assistant", content="I know rivers."),
                    generation.ChatMessage(role="user", content="What is a river?"),
                ]
            ),
            options=json.dumps({"max_new_tokens": 4}),
        ),
        _tool_request(),
        generation.GenerateRequest(
            text="A river is", parse_answer=True, options=json.dumps({"max_new_tokens": 4, "echo": True})
        ),
        generation.GenerateRequest(
            prompt_ids=generation.TokenIds(ids=[5, 6, 7]),
            request_id="mutated",
            options=json.dumps(
                {
                    "strategy": "naive_pp",
                    "max_new_tokens": 4,
                    "strategy_options": {"tree_nodes": 8},
                    "ignore_eos": True,
                    "fit_context": True,
                    "priority": "batch",
                }
            ),
        ),
        generation.GenerateRequest(
            prompt="Give an object.",
            options=json.dumps(
                {
                    "max_new_tokens": 4,
                    "presence_penalty": 0.5,
                    "frequency_penalty": -0.5,
                    "logit_bias": {5: 1.5},
                    "logprobs": 2,
                    "grammar": {"rule": "json_schema", "text": '{"type": "object"}'},
                }
            ),
        ),
    ]


def _tool_request() -> generation.GenerateRequest:
    """A conversation in which a tool has answered."""
    call = generation.ToolCall(id="c1", name="rain", arguments='{"city": "Bonn"}')
    tool = '{"type": "function", "function": {"name": "rain", "parameters": {"type": "object"}}}'
    return generation.GenerateRequest(
        conversation=generation.Conversation(
            messages=[
                generation.ChatMessage(role="user", content="Rain?"),
                generation.ChatMessage(role="assistant", reasoning="I ask.", tool_calls=[call]),
                generation.ChatMessage(role="tool", content="dry", tool_call_id="c1", name="rain"),
            ],
            tools=[tool],
            tool_choice="auto",
            tool_name="rain",
            single_tool_call=True,
            template_values='{"enable_thinking": false}',
        ),
        parse_answer=True,
        options=json.dumps({"max_new_tokens": 4, "echo": True}),
    )


def calls(downstream: str) -> dict[str, Sequence[Message]]:
    """Return requests of one message to an agent without a role, by method.

    downstream: an address that takes streams of any pipeline.
    """
    version = PROTOCOL_VERSION
    stage = agent.StageRole(
        pipeline="mutated",
        config=stage_config().to_json(),
        layer_start=0,
        layer_stop=1,
        downstream=downstream,
        protocol_version=version,
        taps=[1],
        # Which is not fetched, as the model is here.
        weights=agent.WeightSources(manifest="0" * 64, name="x", draft_node=downstream, peers=[downstream]),
    )
    draft_node = agent.DraftNodeRole(
        pipeline="mutated",
        config=PipelineConfig(drafter="none", split=(4,), dtype="float32").to_json(),
        stages=[downstream],
        protocol_version=version,
        middles=[agent.Middle(model="bundled", addresses=[downstream])],
    )
    led = agent.DraftNodeRole()
    led.CopyFrom(draft_node)
    led.standby = downstream
    stand_by = agent.StandByRequest(role=led, origin="mutated", instance="x")
    link = measure.MeasureLinkRequest(
        peer=downstream, peer_id="nobody", bytes=1 << 18, round_trips=1, protocol_version=version
    )
    # No repeats: that is refused, where good numbers would have the agent busy for long.
    device = measure.MeasureDeviceRequest(
        model="bundled", drafter="none", repeats=0, stack_mib=1, protocol_version=version
    )
    return {
        "/flowedge.v1.Agent/Describe": [agent.DescribeRequest(), stage],
        "/flowedge.v1.Agent/Membership": [agent.MembershipRequest(), stage],
        "/flowedge.v1.Agent/BecomeStage": [stage],
        "/flowedge.v1.Agent/BecomeDraftNode": [draft_node],
        "/flowedge.v1.Agent/StandBy": [stand_by],
        "/flowedge.v1.Agent/Prepare": [agent.PrepareRequest(), stage],
        "/flowedge.v1.Agent/Release": [agent.ReleaseRequest(pipeline="mutated")],
        "/flowedge.v1.Agent/Timeline": [agent.TimelineRequest(session="mutated")],
        "/flowedge.v1.Agent/Clock": [agent.ClockRequest(), link],
        "/flowedge.v1.Generation/Generate": generate_requests(),
        "/flowedge.v1.Generation/Watch": [generation.WatchRequest(), link],
        "/flowedge.v1.Weights/Have": [weights.HaveRequest(objects=[bytes(32), b"x" * 32])],
        "/flowedge.v1.Weights/Read": [weights.ReadRequest(object=bytes(32), offset=7, doubted=True)],
        "/flowedge.v1.Weights/Catalogue": [weights.CatalogueRequest()],
        "/flowedge.v1.Weights/Look": [weights.LookRequest(model="bundled")],
        "/flowedge.v1.Measure/MeasureLink": [link],
        "/flowedge.v1.Measure/MeasureDevice": [
            device,
            measure.MeasureDeviceRequest(
                model="x", sizes='{"layers": 2}', repeats=1, only_stored=True, protocol_version=version
            ),
        ],
    }


def streamed_calls() -> dict[str, Message]:
    """Return requests of a stream of messages to an agent without a role, by method."""
    return {
        "/flowedge.v1.Measure/Sink": measure.SinkChunk(data=bytes(100), warm_up=True),
        "/flowedge.v1.Measure/Ping": measure.Probe(data=bytes(64)),
    }
